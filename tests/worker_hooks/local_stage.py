"""A run of one process that saves on its node, `gpu7`, for tests of the node-local tier."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.test_training_telemetry import events
from worker_hooks import Run
from worker_hooks.protocol import generations
from worker_hooks.protocol.tiers import LOCAL


def records(folder: Path, tier: str, state: str = "committed") -> list[dict[str, Any]]:
    found = [event for event in events(folder) if event["kind"] == "checkpoint" and event["state"] == state]
    return [record for record in found if record["tier"] == tier]


def steps(names: list[str]) -> list[int]:
    return [int(name[5:13]) for name in names]


def local_steps(run: Path) -> list[int]:
    return steps(generations.accepted_folders(run, LOCAL))


def shares(node: Path) -> list[int]:
    return sorted(steps([folder.name for folder in node.glob("step-*")]))


def train(root: Path, local: Path, updates: int, **options: Any) -> Path:
    """The run's folder."""
    options = {"checkpoint_every": 4, "local_every": 2, "asynchronous": False, **options}
    with Run(model=torch.nn.Linear(4, 4), root=root, local=local / "{node}", **options) as run:
        for _ in range(updates):
            run.step(loss=1.0)
    return run.folder


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This node's folder, which `{node}` names."""
    monkeypatch.setenv("SLURMD_NODENAME", "gpu7")
    return tmp_path / "nvme" / "gpu7"
