"""What reading a job's log costs: `LogReader` with every recogniser against `grep -E -c` with the same literals.

    python benchmarks/log_scan.py [--json] [--megabytes 1000] [--folder /var/tmp] [--rounds 3]

Makes a log of that size (step lines, progress bars, NCCL INFO, data loader, warnings, and a fault now and then), reads
it with both, taking turns, from a warm page cache, each in a process of its own. The last line is JSON: `scan_vs_grep`
is the larger of the ratios of CPU and of wall time (medians), `peak_mb` the reader's peak resident memory on the big
file, `peak_mb_tenth` on a file a tenth as long.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from worker_hooks.signs.job_recognisers import job_recognisers
from worker_hooks.signs.kernel import kernel_in_job_recognisers

_MEGABYTE = 1_000_000
_READ = """
import json, re, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from worker_hooks.signs.log import LogReader
wall, cpu = time.perf_counter(), time.process_time()
reader, signs = LogReader("job"), 0
with open(sys.argv[2], "rb", buffering=0) as log:
    while data := log.read(1 << 20):
        signs += len(reader.feed(data))
signs += len(reader.close())
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "signs": signs,
                  "peak_mb": int(peak) / 1000, "failures": reader.failures}))
"""


def lines(seed: int) -> Iterator[str]:
    """What jobs print, in about the shares in which they print it; one line in 2000 tells of a fault."""
    draw = random.Random(seed)
    number = 0
    while True:
        number += 1
        step, rank = number // 3, draw.randrange(16)
        host = f"gn{rank // 8 + 1:02d}"
        clock = f"2026-03-05 02:{number // 60 % 60:02d}:{number % 60:02d}"
        kind = draw.random()
        if kind < 0.35:
            yield (
                f"[{clock},{draw.randrange(1000):03d}][trainer][INFO] - iteration {step:8d}/ 200000 | consumed "
                f"samples: {step * 512:12d} | elapsed time per iteration (ms): {draw.uniform(400, 900):.1f} | learning "
                f"rate: {draw.uniform(1e-5, 3e-4):.3E} | lm loss: {draw.uniform(1.8, 2.4):.6E} | grad norm: "
                f"{draw.random():.3f} |"
            )
        elif kind < 0.45:
            yield (
                f"{{'loss': {draw.uniform(1.8, 2.4):.4f}, 'grad_norm': {draw.random():.6f}, 'learning_rate': "
                f"{draw.uniform(1e-5, 3e-4):.6e}, 'epoch': {step / 4000:.2f}}}"
            )
        elif kind < 0.65:
            yield (
                f"{rank}: {host}:{4120 + rank}:{4388 + rank} [{rank % 8}] NCCL INFO Channel "
                f"{draw.randrange(32):02d}/0 : {rank}[{rank % 8}] -> {(rank + 1) % 16}[{(rank + 1) % 8}] "
                f"{draw.choice(_ROADS)}"
            )
        elif kind < 0.82:
            yield (
                f"[rank{rank}]: {clock} DEBUG data.loader: prefetched shard {draw.randrange(10000):05d} from "
                f"/data/train/part-{draw.randrange(900):04d}.tar in {draw.random():.3f}s, queue {draw.randrange(64)}"
            )
        elif kind < 0.92:
            used = draw.uniform(20, 70)
            yield f"{clock} rank {rank} memory allocated {used:.2f} GiB, reserved {used + 3.2:.2f} GiB, 0 retries"
        elif kind < 0.94:
            yield "\r".join(
                f"Evaluating: {part:3d}%|{'#' * (part // 10):10s}| {part}/100 [00:{part % 60:02d}<00:10, 9.81it/s]"
                for part in range(draw.randrange(9), 100, 9)
            )
        elif kind < 0.9995:
            yield draw.choice(_CHATTER).format(rank=rank, host=host, clock=clock, step=step)
        else:
            yield draw.choice(_FAULTS).format(
                rank=rank, host=host, clock=clock, step=step, number=draw.randrange(1 << 30)
            )


_ROADS = ("via P2P/CUMEM/read", "[send] via NET/IB/3/GDRDMA", "[receive] via NET/IB/3/GDRDMA", "via SHM/direct/direct")
_CHATTER = (
    "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataset.py:{step}: UserWarning: the given buffer is not "
    "writable, and tensors that are not writable are not supported (Triggered internally at tensor_numpy.cpp:206.)",
    "{host}:4120:4388 [{rank}] NCCL INFO comm 0x55d0c8a0 rank {rank} nranks 16 cudaDev 3 nvmlDev 3 busId 9b000 - "
    "Init COMPLETE",
    "{host}:4120:4388 [{rank}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.8.0.7<0>",
    "{clock} [WARNING] tokenizer: sequence of 8213 tokens is longer than 8192 and was cut (document {step})",
    "INFO:{clock}: saved checkpoint of step {step} to /scratch/ada/run-7/step-{step} in 41.2 s (blocked 0.8 s)",
    "wandb: Synced 5 W&B file(s), 0 media file(s), 2 artifact file(s) and {step} other file(s)",
)
_FAULTS = (
    "[rank{rank}]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "{host}:4120:4388 [3] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.8.0.19<{number}> with "
    "status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::a07 remoteGidsfe80::a13",
    "[rank{rank}]: Traceback (most recent call last):",
    "[rank{rank}]: OSError: [Errno 5] Input/output error: 'data/shard_{number}.bin'",
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800090 milliseconds before timing out.",
    "slurmstepd: error: *** STEP 55120418.0 ON {host} CANCELLED AT 2026-01-12T16:31:40 DUE TO TIME LIMIT ***",
)


def literals() -> list[bytes]:
    recognisers = [*job_recognisers(), *kernel_in_job_recognisers()]
    return sorted({literal for one in recognisers for literal in (*one.triggers, *getattr(one, "frequent", ()))})


def write_log(path: Path, size: int) -> None:
    """A piece of 32 MB, again and again: what matters is the mix, and that it does not fit a cache."""
    source = lines(seed=7)
    piece = b""
    while len(piece) < min(size, 32 * _MEGABYTE):
        piece += ("\n".join(next(source) for _ in range(20_000)) + "\n").encode()
    with path.open("wb") as log:
        for _ in range(size // len(piece)):
            log.write(piece)
        log.write(piece[: size % len(piece)])


def read(path: Path) -> dict[str, float]:
    command = [sys.executable, "-c", _READ, str(Path(__file__).resolve().parents[1]), str(path)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=600)
    result: dict[str, float] = json.loads(done.stdout)
    if result.pop("failures"):
        raise RuntimeError(f"a recogniser failed: {done.stdout!r}")
    return result


def grep(path: Path) -> dict[str, float]:
    pattern = "|".join(re.sub(r"([][().*+?^$|{}\\])", r"\\\1", one.decode()) for one in literals())
    start = time.perf_counter()
    process = subprocess.Popen(
        ["grep", "-E", "-c", pattern, str(path)], stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}
    )
    assert process.stdout is not None
    matched = int(process.stdout.read())
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return {"wall_s": time.perf_counter() - start, "cpu_s": usage.ru_utime + usage.ru_stime, "lines": matched}


def measure(folder: Path, size: int, rounds: int) -> dict[str, object]:
    big, small = folder / "big.log", folder / "small.log"
    write_log(big, size)
    write_log(small, size // 10)
    subprocess.run(["cksum", str(big)], check=True, stdout=subprocess.DEVNULL, timeout=300)  # into the page cache
    scans, greps = [], []
    for _ in range(rounds):
        greps.append(grep(big))
        scans.append(read(big))
    ratios = {
        key: statistics.median(one[key] for one in scans) / statistics.median(one[key] for one in greps)
        for key in ("cpu_s", "wall_s")
    }
    return {
        "scan_vs_grep": round(max(ratios.values()), 2),
        "cpu_ratio": round(ratios["cpu_s"], 2),
        "wall_ratio": round(ratios["wall_s"], 2),
        "scan_cpu_s": round(statistics.median(one["cpu_s"] for one in scans), 2),
        "grep_cpu_s": round(statistics.median(one["cpu_s"] for one in greps), 2),
        "peak_mb": round(max(one["peak_mb"] for one in scans), 1),
        "peak_mb_tenth": round(read(small)["peak_mb"], 1),
        "megabytes": size // _MEGABYTE,
        "literals": len(literals()),
        "lines_with_a_literal": int(greps[0]["lines"]),
        "signs": int(scans[0]["signs"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/var/tmp", help="where the log is made; removed afterwards")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="relume-log-scan-", dir=options.folder))
    try:
        result = measure(folder, options.megabytes * _MEGABYTE, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not options.json:
        for key, value in result.items():
            print(f"{key:24} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
