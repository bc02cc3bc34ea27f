"""A run of one process that saves at every step, for tests of what a resume makes of its folder. No rank is started."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from worker_hooks import Run
from worker_hooks.protocol.manifest import parse_folder
from worker_hooks.protocol.tiers import SHARED
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.resuming.candidates import Source, look_into, manifest_of
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.sources import Ground, Sources


def objects(lr: float = 0.1) -> dict[str, Any]:
    """A model with buffers and an optimizer with state; what they hold is overwritten by a resume."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=lr)}


def update(tracked: dict[str, Any]) -> float:
    loss = tracked["model"](torch.randn(4, 8)).square().sum()
    loss.backward()
    tracked["optimizer"].step()
    tracked["optimizer"].zero_grad()
    return float(loss.detach())


def bits(tracked: dict[str, Any]) -> list[bytes]:
    """Every tensor of the model and of the optimizer."""
    state = tracked["optimizer"].state_dict()["state"]
    moments = [state[index][key] for index in sorted(state) for key in sorted(state[index])]
    tensors = [*tracked["model"].state_dict().values(), *moments]
    return [bytes(tensor.detach().reshape(-1).view(torch.uint8).tolist()) for tensor in tensors]


@dataclass
class Saved:
    """`states`: what the run held at each step that was saved."""

    root: Path
    run: Path
    states: dict[int, list[bytes]] = field(default_factory=dict)

    def folder(self, step: int) -> Path:
        (found,) = (path for path in self.run.glob("step-*") if (parse_folder(path.name) or (0, 0))[0] == step)
        return found

    def resume(self, **options: Any) -> tuple[int, list[bytes]]:
        """A new attempt, ended before its first update: the step it began at, and what it held then."""
        tracked = objects()
        with Run(root=self.root, checkpoint_every=0, **tracked, **options) as run:
            return run.completed, bits(tracked)


def look(folder: Path) -> Source:
    """What a resume of one rank makes of a checkpoint on shared storage. Raises Damaged."""
    sources = Sources(Ground(folder.parent, Coordinator(), Nodes(("here",))), folder.name, (SHARED,))
    return look_into(sources, manifest_of(folder), 0)


def save_steps(root: Path, steps: int = 3) -> Saved:
    torch.manual_seed(1)
    tracked = objects()
    states = {}
    with Run(root=root, checkpoint_every=1, keep=steps, asynchronous=False, **tracked) as run:
        for _ in range(steps):
            run.step(loss=update(tracked))
            states[run.completed] = bits(tracked)
    return Saved(root, run.folder, states)
