"""Where ranks of real torch programs stand, on gloo: in a collective, a backward pass, a loader. On GPUs: not run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.decision.assess.standing import LOADS, PROGRAM, WAITS, place
from controller.decision.evidence import JOB, Evidence
from tests.worker_hooks.agent_stage import Stage, stage, until

pytestmark = pytest.mark.torch
PROGRAM_TEXT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 9
    def __getitem__(self, index): time.sleep(600)

def hang(how):
    if how == "loader": next(iter(DataLoader(Slow())))
    if how == "workers": next(iter(DataLoader(Slow(), num_workers=1)))
    if how == "own": time.sleep(600)

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(4)).sum().backward()
open(f"stuck-{dist.get_rank()}", "w").close()
if dist.get_rank() == 2: hang(sys.argv[1])
elif sys.argv[2] == "backward" and dist.get_rank() == 1: model(torch.ones(4)).sum().backward()
elif sys.argv[2] == "all_reduce": dist.all_reduce(torch.ones(4))
else: dist.barrier()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("how", "call", "expected"),
    [
        ("loader", "all_reduce", LOADS),
        ("workers", "barrier", LOADS),
        ("own", "backward", PROGRAM),
    ],
)
def test_the_rank_that_stands_elsewhere_is_told_from_those_that_wait(
    run: Stage, how: str, call: str, expected: str
) -> None:
    run.start("--ranks", "3", program=(sys.executable, "-c", PROGRAM_TEXT, how, call))
    until(lambda: all((run.folder / f"stuck-{rank}").exists() for rank in range(3)), 90)
    numbers = iter(range(1, 1000))

    def places() -> dict[int, str]:
        """Asked anew until every rank has come to its place."""
        run.controller.instructions = [{"kind": "stacks", "id": str(next(numbers)), "ranks": [0, 1, 2]}]
        signs = [sign for sign in run.controller.of_kind("sign") if sign["code"] == "stack.stuck"]
        return {sign["rank"]: place(_evidence(sign)) for sign in signs}

    wanted = {0: WAITS, 1: WAITS, 2: expected}
    until(lambda: places() == wanted, 30)


def _evidence(sign: dict) -> Evidence:  # type: ignore[type-arg]
    return Evidence(
        str(sign["seq"]), sign["code"], sign["layer"], sign["source"], JOB, sign["raw"], rank=sign["rank"],
        attrs=sign["attrs"],
    )  # fmt: skip
