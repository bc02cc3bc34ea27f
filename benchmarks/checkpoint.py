"""What a checkpoint costs training: ours, torch's own asynchronous savers, and what the machine could do at best.

    python benchmarks/checkpoint.py [--json] [--folder /var/tmp] [--size 1073741824] [--rounds 15] [--worlds 1,2]

Each rank holds `--size` bytes of state (a model's parameters and two Adam moments in 384 tensors), the same on every
rank as under DistributedDataParallel. In each round every method saves once, taking turns in another order each time,
and the limits are measured between them; round 0 is a warm-up and not counted. All of it changes between two saves.

`blocked`: from the call of `run.step` (or `async_save`) that takes the save to its return. `cost`: that, and what the
steps that run meanwhile take longer than idle ones until everything is durable. `durable`: from the call until the
manifest (or DCP's metadata) is renamed into place. With several ranks the slowest counts. Peers: `dcp.async_save` with
its default stager and with one that is kept (`DefaultStager`), on a thread and in a process; "DCP's best" is the best
of them on that figure. Limits: one copy of the state into buffers at hand, an fsynced sequential write past the page
cache (O_DIRECT) and through it. The ranks begin each save together, as a step of DDP ends. With two ranks the limits of
writing are one rank's bytes: the state is replicated.

The last line is JSON; each ratio is the median of the rounds' ratios, `intervals` are 95 % intervals of the medians
(bootstrap, seeded). The figures of loading come from `checkpoint_load.py`.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.checkpoint_load import load_ratios
from benchmarks.rounds import Rounds, interval, slowest

HERE = Path(__file__).resolve().parent
DCP = ("dcp_thread", "dcp_thread_kept_stager", "dcp_process", "dcp_process_kept_stager")
TARGETS = {
    "blocked_vs_memcpy_1": 1.3,
    "blocked_vs_dcp_best_2": 0.5,
    "cost_vs_dcp_best_1": 0.5,
    "cost_vs_dcp_best_2": 0.5,
    "durable_vs_odirect_1": 1.7,
    "durable_vs_dcp_best_1": 0.5,
}


def measure(world: int, folder: Path, size: int, rounds: int) -> Rounds:
    """The figures of each round by method, the slowest rank's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scratch = Path(tempfile.mkdtemp(prefix="relume-checkpoint-", dir=folder))
    threads = str(max(1, (os.cpu_count() or 1) // world))
    try:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / "checkpoint_rank.py"), str(scratch), str(size), str(rounds)],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(world),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": threads,
                },
            )
            for rank in range(world)
        ]
        codes = [rank.wait(timeout=120 + 60 * rounds) for rank in ranks]
        if any(codes):
            raise SystemExit("a rank of the benchmark failed")
        return slowest(scratch, world)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def best_of(one: dict[str, dict[str, float]], key: str, rounds: Rounds) -> float:
    """DCP's best on that figure: the method whose median is the least, in this round."""
    best = min(
        (name for name in DCP if name in one), key=lambda name: statistics.median(each[name][key] for each in rounds)
    )
    return one[best][key]


def ratios(world: int, rounds: Rounds) -> dict[str, list[float]]:
    found = {
        f"blocked_vs_memcpy_{world}": [one["ours"]["blocked"] / one["memcpy"]["seconds"] for one in rounds],
        f"durable_vs_odirect_{world}": [one["ours"]["durable"] / one["odirect"]["seconds"] for one in rounds],
    }
    for key in ("blocked", "cost", "durable"):
        found[f"{key}_vs_dcp_best_{world}"] = [one["ours"][key] / best_of(one, key, rounds) for one in rounds]
    return found


def table(world: int, rounds: Rounds) -> None:
    print(f"\n{world} rank(s), {len(rounds)} rounds, medians in seconds")
    for method in rounds[0]:
        keys = rounds[0][method]
        said = "  ".join(f"{key} {statistics.median(one[method][key] for one in rounds):.3f}" for key in keys)
        print(f"  {method:26} {said}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--worlds", default="1,2")
    options = parser.parse_args()
    values: dict[str, list[float]] = {}
    for world in map(int, options.worlds.split(",")):
        rounds = measure(world, options.folder, options.size, options.rounds)
        values |= ratios(world, rounds)
        if not options.json:
            table(world, rounds)
    line: dict[str, Any] = {name: round(statistics.median(values[name]), 3) for name in TARGETS if name in values}
    intervals = {name: interval(values[name]) for name in line}
    loads = load_ratios(options.folder, options.size, options.rounds)
    line |= {name: round(statistics.median(found), 3) for name, found in loads.items()}
    intervals |= {name: interval(found) for name, found in loads.items()}
    print(json.dumps({"rounds": options.rounds, "size": options.size, "intervals": intervals, **line}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
