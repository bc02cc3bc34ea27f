"""Error files and dumps that torch itself wrote, on gloo. NCCL's own dump on a timeout needs GPUs: not run here."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.agent_stage import Stage, stage

pytestmark = pytest.mark.torch
PROGRAM = """
import os
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"], "wb") as file:
        file.write(_dump_fr_trace(includeStackTraces=False))
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("labels of shape 3")
    dist.barrier()

main()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def test_what_torch_writes_is_read(run: Stage) -> None:
    assert run.end(run.start("--ranks", "2", program=(sys.executable, "-c", PROGRAM)))[0] != 0
    signs = run.controller.of_kind("sign")
    (told,) = [s for s in signs if (s["code"], s["source"], s["rank"]) == ("python.exception", "torchrun", 1)]
    assert told["attrs"] == {"type": "ValueError", "text": "labels of shape 3"}
    states = [sign for sign in signs if sign["code"] == "collective.state"]
    assert {sign["rank"] for sign in states} == {0, 1}
    assert [sign for sign in signs if sign["code"] == "flight_recorder.refused"] == []
