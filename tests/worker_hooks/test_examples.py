"""Every example trains, and killed in the middle and started again it ends with the same parameters."""

import json
from pathlib import Path

import pytest

from tests.worker_hooks.conftest import EXAMPLES, RUN_ID, World
from worker_hooks.protocol.generations import accepted_folders

pytestmark = pytest.mark.torch

IMPORTS = {
    "lightning_run.py": ("lightning.pytorch",),
    "huggingface_run.py": ("transformers", "transformers.trainer", "transformers.models.llama", "accelerate"),
}
# The examples have no switch to die by: each rank dies after update 9, when a checkpoint is committed.
KILL = """
import os, runpy, signal, sys, time
from worker_hooks import Run
step = Run.step
def counted(self, *given, **named):
    step(self, *given, **named)
    if self.completed == 9:
        while not list(self.folder.glob("step-*/manifest.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
Run.step = counted
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def finish(world: World, name: str, root: str) -> dict[str, object]:
    report = world.folder / f"{root}.json"
    started = world.start(EXAMPLES / name, arguments(world, root), 2, imports=IMPORTS.get(name, ()))
    assert started.wait(120) == [0, 0], started.text()
    found: dict[str, object] = json.loads(report.read_text())
    return found


def arguments(world: World, root: str) -> list[str]:
    return [
        *("--root", str(world.folder / root), "--report", str(world.folder / f"{root}.json")),
        *("--samples", "160", "--batch", "4", "--epochs", "2", "--checkpoint-every", "4"),
    ]


@pytest.mark.parametrize("name", ["ddp.py", "fsdp2.py", "lightning_run.py", "huggingface_run.py"])
def test_an_example_goes_on_where_it_was(world: World, name: str, tmp_path: Path) -> None:
    whole = finish(world, name, "whole")
    killer = tmp_path / "killer.py"
    killer.write_text(KILL)
    argv = [str(EXAMPLES / name), *arguments(world, "again")]
    started = world.start(killer, argv, 2, imports=IMPORTS.get(name, ()))
    assert started.wait(120) == [-9, -9], started.text()
    again = finish(world, name, "again")
    assert again == whole and int(str(whole["steps"])) > 12
    assert accepted_folders(world.folder / "again" / RUN_ID), "it began anew"
