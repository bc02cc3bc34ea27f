"""What a verified load costs: ours with every digest compared, against `dcp.load`, which compares none.

    python benchmarks/checkpoint_load.py [--json] [--folder /var/tmp] [--size 1073741824] [--rounds 15] [--worlds 1,2]
                                         [--keep-heap]

Each rank holds `--size` bytes of state (a model's parameters and two Adam moments in 384 tensors), replicated. Ours is
what a resume does: the newest checkpoint is found, its manifest, rank files and indexes are compared, and its tensors
are loaded into the tracked objects while the digest of every byte of every file is computed and compared. The peer
loads the same state and compares nothing. Both load into tensors that are there already. Cold: the pages of every file
are dropped (`POSIX_FADV_DONTNEED`) before each load. They take turns, in another order each round; round 0 is a
warm-up.

A resume then compares the tensors in memory once more with the digests of their chunks, before the first step.
`dcp.load` has no counterpart of that, so it is in no ratio: `compare` in `seconds` says what it takes.

The peer makes each tensor in memory of its own before it copies it. As glibc comes, that memory is given back and
faulted in again at every load, which is most of the peer's warm time; in a process whose heap happens to keep it the
peer is three times as fast. `--keep-heap` tells malloc to keep it: the peer at its best.

The last line is JSON: medians of the rounds' ratios and, in `intervals`, 95 % intervals of these medians (bootstrap,
seeded); `seconds` holds the medians of each part. `checkpoint.py` reports the same ratios.
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
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rounds import Rounds, interval, slowest

LAYERS = 128
KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}


# --- one rank -----------------------------------------------------------------------------------------------------


def rank_main(folder: Path, size: int, rounds: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn

    from worker_hooks import Run
    from worker_hooks.training.comms import Coordinator
    from worker_hooks.training.resuming.live_digests import compare
    from worker_hooks.training.resuming.resume import Loading
    from worker_hooks.training.state.tracked import Tracked
    from worker_hooks.training.tiers.nodes import Nodes
    from worker_hooks.training.tiers.sources import Ground

    warnings.filterwarnings("ignore")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.ParameterList([torch.randn(size // (3 * LAYERS * 4)) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        moments = {name: torch.rand_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    with Run(root=folder / "ours", checkpoint_every=0) as run:
        run.track(model=model, optimizer=optimizer)
        run.restore()
        run.step()
    theirs = {
        "model": {name: parameter.detach().clone() for name, parameter in net.named_parameters()},
        "optimizer": {
            str(index): {key: value.clone() for key, value in state.items()}
            for index, state in enumerate(optimizer.state.values())
        },
    }
    dcp.save(theirs, checkpoint_id=folder / "theirs", no_dist=world == 1)
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    ground = Ground(run.folder, Coordinator(), Nodes(("here",) * world))
    loading = Loading(ground, tracked, lambda *found: sys.exit(f"bad: {found}"))

    def load_ours() -> dict[str, float]:
        begun = time.perf_counter()
        source = loading.newest()
        loaded = time.perf_counter()
        assert source is not None
        parts = tracked.collect(world)
        found = compare(source.reader(), source.keys(source.reader()), parts.shared | parts.own)
        compared = time.perf_counter()
        loading.lease.close()
        assert found.expected and not found.differing and not found.elsewhere, found.summary()
        return {"seconds": loaded - begun, "compare": compared - loaded}

    def load_theirs() -> dict[str, float]:
        begun = time.perf_counter()
        dcp.load(theirs, checkpoint_id=folder / "theirs", no_dist=world == 1)
        return {"seconds": time.perf_counter() - begun}

    def settled() -> None:
        if world > 1:
            dist.barrier()

    methods: dict[str, tuple[Callable[[], dict[str, float]], Path]] = {
        "ours": (load_ours, run.folder),
        "dcp": (load_theirs, folder / "theirs"),
    }
    found: Rounds = []
    for number in range(rounds + 1):
        one: dict[str, dict[str, float]] = {}
        for name in sorted(methods, reverse=bool(number % 2)):
            call, files = methods[name]
            for state in ("cold", "warm"):
                settled()
                if state == "cold" and rank == 0:
                    forget(files)
                settled()
                one[f"{name}_{state}"] = call()
        found.append(one)
    (folder / f"result-{rank}.json").write_text(json.dumps(found[1:]))
    settled()
    if world > 1:
        del model, tracked
        dist.destroy_process_group()


def forget(folder: Path) -> None:
    """Every page of every file that the cache holds."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- all ranks ----------------------------------------------------------------------------------------------------


def measure(world: int, folder: Path, size: int, rounds: int, *, keep_heap: bool = False) -> Rounds:
    """The figures of each round by method, the slowest rank's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scratch = Path(tempfile.mkdtemp(prefix="relume-load-", dir=folder))
    shared = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        **(KEPT_HEAP if keep_heap else {}),
    }
    try:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank-in", str(scratch), "--size", str(size), "--rounds", str(rounds)],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world)
        ]
        codes = [rank.wait(timeout=180 + 60 * rounds) for rank in ranks]
        if any(codes):
            raise SystemExit("a rank of the benchmark failed")
        return slowest(scratch, world)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def ratios(world: int, rounds: Rounds) -> dict[str, list[float]]:
    return {
        f"verified_load_vs_dcp_load_{state}_{world}": [
            one[f"ours_{state}"]["seconds"] / one[f"dcp_{state}"]["seconds"] for one in rounds
        ]
        for state in ("cold", "warm")
    }


def load_ratios(folder: Path, size: int, rounds: int) -> dict[str, list[float]]:
    """Each round's ratios, one process."""
    return ratios(1, measure(1, folder, size, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--worlds", default="1,2")
    parser.add_argument("--keep-heap", action="store_true", help="malloc gives nothing back: the peer at its best")
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_in:
        rank_main(options.rank_in, options.size, options.rounds)
        return
    line: dict[str, Any] = {"rounds": options.rounds, "size": options.size, "seconds": {}, "intervals": {}}
    for world in map(int, options.worlds.split(",")):
        rounds = measure(world, options.folder, options.size, options.rounds, keep_heap=options.keep_heap)
        for name, values in ratios(world, rounds).items():
            line[name] = round(statistics.median(values), 3)
            line["intervals"][name] = interval(values)
        for method, keys in rounds[0].items():
            medians = {key: round(statistics.median(one[method][key] for one in rounds), 3) for key in keys}
            line["seconds"][f"{method}_{world}"] = medians
            if not options.json:
                print(f"{world} rank(s)  {method:10} {medians}")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
