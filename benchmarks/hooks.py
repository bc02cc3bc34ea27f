"""What `run.step()` costs a training loop, beside TensorBoard's log of the same three numbers.

    python benchmarks/hooks.py [--json] [--steps 5000] [--rounds 11]

Per step: a loss and a learning rate and a norm, as tensors on the CPU, told to a `Run` that tracks a model, with a run
folder as under an agent and no save due; and `SummaryWriter.add_scalar` of the same three (needs the `benchmarks`
extra). They take turns within each round, on the same tensors. Both write in background threads of their own, whose
work is in the figures as far as it slows the loop. The last line is JSON: `run_step_us` (the median round's mean per
step), `run_step_vs_peer` (median of the rounds' ratios; null without the peer) with its 95 % interval, and
`collect_vs_copy`: finding the tensors of a state of 18,000 small ones for the second save, against copying them once.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.rounds import interval
from worker_hooks import Run
from worker_hooks.protocol.slots import create_slots
from worker_hooks.training.state.tracked import Tracked


def ours(folder: Path) -> Callable[[int, list[torch.Tensor]], None]:
    run_dir = folder / "run_dir"
    run_dir.mkdir()
    create_slots(run_dir / "slots", 1)
    os.environ["RELUME_RUN_DIR"] = str(run_dir)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    run = Run(model=model, optimizer=optimizer, root=folder / "checkpoints", checkpoint_every=0)
    run.restore()

    def step(number: int, values: list[torch.Tensor]) -> None:
        run.step(loss=values[0], rate=values[1], grad_norm=values[2])

    return step


def peer(folder: Path) -> Callable[[int, list[torch.Tensor]], None] | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def step(number: int, values: list[torch.Tensor]) -> None:
        writer.add_scalar("loss", values[0], number)
        writer.add_scalar("rate", values[1], number)
        writer.add_scalar("grad_norm", values[2], number)

    return step


def collect_vs_copy(rounds: int) -> float:
    """Median ratio. 4,500 parameters and their three tensors each in AdamW."""
    blocks = (torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)) for _ in range(1125))
    tracked = Tracked()
    tracked.add("model", torch.nn.ModuleList(blocks))
    parameters = list(tracked.models["model"].parameters())
    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tracked.add("optimizer", optimizer)
    found = tracked.collect(1).shared
    room = [torch.empty_like(tensor) for tensor in found.values()]
    ratios = []
    for _ in range(rounds):
        begun = time.perf_counter()
        found = tracked.collect(1).shared
        collected = time.perf_counter()
        for place, tensor in zip(room, found.values(), strict=True):
            place.copy_(tensor)
        ratios.append((collected - begun) / (time.perf_counter() - collected))
    return statistics.median(ratios)


def timed(step: Callable[[int, list[torch.Tensor]], None], first: int, steps: int) -> float:
    """Mean microseconds of a step."""
    values = [torch.rand(()) for _ in range(3)]
    begun = time.perf_counter()
    for number in range(first, first + steps):
        step(number, values)
    return (time.perf_counter() - begun) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relume-hooks-") as name:
        folder = Path(name)
        found: dict[str, list[float]] = {"ours": [], "peer": []}
        methods = {"ours": ours(folder), "peer": peer(folder)}
        for number in range(options.rounds + 1):
            order = sorted(methods, reverse=bool(number % 2))
            for method in order:
                step = methods[method]
                if step is not None:
                    micros = timed(step, number * options.steps, options.steps)
                    found[method].append(micros)
        mine, theirs = found["ours"][1:], found["peer"][1:]
        ratios = [own / other for own, other in zip(mine, theirs, strict=False)]
        line = {
            "run_step_us": round(statistics.median(mine), 2),
            "run_step_vs_peer": round(statistics.median(ratios), 3) if ratios else None,
            "interval": interval(ratios) if ratios else None,
            "peer_us": round(statistics.median(theirs), 2) if theirs else None,
            "collect_vs_copy": round(collect_vs_copy(options.rounds), 3),
        }
        if not options.json:
            print(f"ours {interval(mine)} us, TensorBoard {interval(theirs) if theirs else 'not installed'} us")
        print(json.dumps(line), flush=True)
        os._exit(0)  # the writers' threads and the folder's removal are none of the measurement


if __name__ == "__main__":
    main()
