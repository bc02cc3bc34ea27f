"""Attempts of one process over a few tracked objects, and what their resume said. No rank is started."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from worker_hooks import Run
from worker_hooks.training.resuming.resumption import Resumption
from worker_hooks.training.resuming.verify import Check

Objects = dict[str, Any]


def told_checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    """The newest checks before the first step, by name, as resumes report them from now on."""
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    found: dict[str, Check] = {}

    def report(_self: Resumption, stage: str, _step: int, checks: list[Check]) -> None:
        if stage == "before_first_step":
            found.update({check.name: check for check in checks})

    monkeypatch.setattr(Resumption, "report", report)
    return found


def attempt(
    root: Path,
    tracked: Objects,
    steps: int,
    *,
    begin: Callable[[], object] = lambda: None,
    after: Callable[[int], object] = lambda step: None,
) -> Run:
    """Resumes, does `steps` updates and saves at its end. `begin`: what the script does between the restore and its
    first update; `after`: what follows each update, still before `run.step`."""
    with Run(root=root, checkpoint_every=0, asynchronous=False, **tracked) as run:
        begin()
        for step in range(run.completed + 1, run.completed + 1 + steps):
            update(tracked)
            after(step)
            run.step()
    return run


def update(tracked: Objects) -> None:
    model, optimizer, scaler = tracked["model"], tracked["optimizer"], tracked.get("scaler")
    loss = model(torch.randn(4, 8)).square().mean()
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
