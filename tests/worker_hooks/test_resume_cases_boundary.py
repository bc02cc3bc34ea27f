"""Resume cases of public reports: what is never saved. R14 (weights of an average, during an evaluation), R27 (no
number in what an update changes, on any rank)."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.worker_hooks.conftest import World
from tests.worker_hooks.resume_stage import bits, objects, update
from tests.worker_hooks.state_stage import Objects, attempt
from worker_hooks import Run
from worker_hooks.protocol.generations import accepted_folders
from worker_hooks.training.data import ResumableSampler

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)


class Killed(Exception):
    pass


def loaders() -> list[DataLoader[Any]]:
    data = TensorDataset(torch.zeros(16, 1))
    return [DataLoader(data, 4, sampler=ResumableSampler(data)) for _ in range(2)]


def evaluations(run: Run, tracked: Objects, *, in_phase: bool, asked: bool) -> list[bytes]:
    """Updates with an evaluation on other weights after each, over a tracked loader; killed in the third one.

    Returns what the model was after the second update."""
    training, validation = loaders()
    run.track(**tracked, loader=[training, validation])
    run.restore()
    states = [bits(tracked)]

    def evaluate() -> None:
        kept = [parameter.detach().clone() for parameter in tracked["model"].parameters()]
        with torch.no_grad():
            for parameter in tracked["model"].parameters():
                parameter.fill_(7.0)
            if asked:
                os.kill(os.getpid(), signal.SIGUSR2)
            for _ in run.batches(validation):
                if len(states) == 4:
                    raise Killed
            for parameter, value in zip(tracked["model"].parameters(), kept, strict=True):
                parameter.copy_(value)

    try:
        for _ in run.epochs(1):
            for _ in run.batches(training):
                run.step(loss=update(tracked))
                states.append(bits(tracked))
                if in_phase:
                    with run.phase("evaluation"):
                        evaluate()
                else:
                    evaluate()
    except Killed:
        return states[2]
    raise AssertionError("the third evaluation never came")


@pytest.mark.parametrize("in_phase", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_a_tracked_loader_of_an_evaluation_ends_no_update(tmp_path: Path, in_phase: bool, asked: bool) -> None:
    """R14: due at every step, or asked for while other weights stand in, it is taken at the end of the update."""
    tracked, again = objects(), objects()
    with Run(root=tmp_path, checkpoint_every=0 if asked else 1, asynchronous=False) as run:
        expected = evaluations(run, tracked, in_phase=in_phase, asked=asked)
        run._attempt._saver.finish()
        steps = accepted_folders(run.folder)
    assert steps[0] == "step-00000002.g1"
    for folder in run.folder.glob("step-00000003.g1"):  # of the clean end
        (folder / "manifest.json").unlink()
        (folder / "rank-00000.json").unlink()
    with Run(root=tmp_path, checkpoint_every=0) as resumed:
        resumed.track(**again, loader=loaders())
        assert resumed.restore() == 2
        assert bits(again) == expected


def test_a_frozen_mask_blocks_no_save(tmp_path: Path) -> None:
    """R27: some models keep their causal mask in a parameter that nobody trains."""
    tracked = objects()
    mask = nn.Parameter(torch.full((4, 4), -math.inf).triu(1), requires_grad=False)
    tracked["model"][0].register_parameter("mask", mask)
    run = attempt(tmp_path, tracked, 1)
    assert accepted_folders(run.folder) == ["step-00000001.g1"]


def test_ranks_that_store_their_own_model_are_looked_at_too(world: World) -> None:
    """R27: neither DDP nor sharded, so each rank stores all of it under a name of its own."""
    started = world.tiny(2, wrap="none", nan_at=5, total=8, exact=False)
    assert started.wait() == [0, 0], started.text()
    assert accepted_folders(world.run) == ["step-00000004.g1"]
