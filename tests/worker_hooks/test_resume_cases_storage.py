"""Resume cases of public reports about what lies on disk, with relatives of each: R20 (killed while saving: bad sets
beside good ones), R28 (somebody else's files and clocks), R09 (a resume at its last step), R02 (an interruption exactly
at the end of an epoch)."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.worker_hooks.resume_stage import Saved, objects, update
from tests.worker_hooks.saved_run import made, one_run, saved
from tests.worker_hooks.test_training_telemetry import events
from worker_hooks import Run
from worker_hooks.protocol.survey import survey
from worker_hooks.training.data.sampler import ResumableSampler
from worker_hooks.training.errors import RestartedFromScratch

pytestmark = pytest.mark.torch
__all__ = ["made", "one_run", "saved"]

SHAPES = {"cut": b'{"version": 1, "st', "list": b"[]", "object": b"{}", "nul": bytes(9)}


def chosen(run: Path) -> int | None:
    """By `relume checkpoints list`."""
    return survey(run).choice.step


def cut(path: Path, size: int = 0) -> None:
    os.truncate(path, size)


# --- R20: sets of every kind of badness -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00000004.g1/manifest.json", 3),
        ("step-00000004.g1/rank-00000.json", 3),
        ("step-00000004.g1/rank-00000.d/index.json", 3),
        ("step-00000004.g1/quarantine.json", 3),
        ("step-00000004.g1/verified.json", 4),
        ("generations/000001.json", 4),
        ("latest", 4),
    ],
)
def test_a_file_of_another_shape(saved: Saved, name: str, step: int, shape: str) -> None:
    """R20, R24: JSON that says something else is as bad as none; the list names what the resume takes."""
    (saved.run / name).write_bytes(SHAPES[shape])
    assert chosen(saved.run) == step
    assert saved.resume() == (step, saved.states[step])
    assert chosen(saved.run) == step


def test_bad_sets_leftovers_and_times_that_lie(saved: Saved) -> None:
    """R20: two bad sets above a good one, `.tmp` files everywhere, the newest time on the oldest step and in the
    future. The bad ones are named, kept for inspection and never loaded."""
    for step in (4, 3):
        for name in ("rank-00000.d/tensors.bin.tmp", ".manifest.json.77.0badc0de"):
            (saved.folder(step) / name).write_bytes(b"half")
    cut(saved.folder(4) / "rank-00000.d/tensors.bin")
    cut(saved.folder(3) / "rank-00000.d/tensors.bin", 100)
    torn = saved.run / "step-00000009.g1"
    (torn / "rank-00000.d").mkdir(parents=True)
    (torn / "rank-00000.d" / "tensors.bin").write_bytes(b"x" * 4096)
    for age, step in enumerate((1, 2, 3, 4)):
        for path in (saved.folder(step), *saved.folder(step).rglob("*")):
            os.utime(path, (time.time() + 9e6 * (2 - age),) * 2)
    listed = {item.step: (item.state, item.missing) for item in survey(saved.run).checkpoints}
    assert listed[4][0] == listed[3][0] == "damaged" and listed[9][0] == "incomplete"
    assert "tensors.bin has 0 bytes" in listed[4][1][0] and "tensors.bin has 100 bytes" in listed[3][1][0]
    assert chosen(saved.run) == 2
    assert saved.resume() == (2, saved.states[2])
    for step in (4, 3):
        assert (saved.folder(step) / "rank-00000.d/tensors.bin").exists()
        assert "tensors.bin" in json.loads((saved.folder(step) / "quarantine.json").read_text())["reason"]


def test_a_mixed_set_is_no_set(saved: Saved) -> None:
    """R20: step 4 holds the files of step 3, each of them whole."""
    for name in ("rank-00000.d/tensors.bin", "rank-00000.d/index.json", "rank-00000.json"):
        shutil.copyfile(saved.folder(3) / name, saved.folder(4) / name)
    assert saved.resume() == (3, saved.states[3])


def test_nothing_but_bad_sets_is_no_beginning(saved: Saved) -> None:
    """R20, R28: each in another way. Nobody goes back to step 0 unasked."""
    cut(saved.folder(4) / "manifest.json")
    cut(saved.folder(3) / "rank-00000.json", 40)
    (saved.folder(2) / "rank-00000.d/index.json").unlink()
    shutil.rmtree(saved.folder(1) / "rank-00000.d")
    assert chosen(saved.run) is None
    for _ in range(2):
        with pytest.raises(RestartedFromScratch) as refused:
            saved.resume()
        assert all(f"step-{step:08d}.g1" in str(refused.value) for step in (1, 2, 3, 4))


# --- R09, R02: ends ---------------------------------------------------------------------------------------------------


def everything(run: Path) -> dict[str, Any]:
    """Every checkpoint folder and file with its time and bytes."""
    found = [path for folder in run.glob("step-*") for path in (folder, *folder.rglob("*"))]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in found}


@pytest.mark.parametrize("total", [4, 3, 1])
@pytest.mark.parametrize("every", [0, 1])
def test_a_resume_at_or_beyond_the_total_writes_nothing(saved: Saved, total: int, every: int) -> None:
    """R09: also where the total was lowered between attempts, and twice in a row."""
    before = everything(saved.run)
    for _ in range(2):
        tracked, done = objects(), 0
        with Run(root=saved.root, checkpoint_every=every, total_steps=total, **tracked) as run:
            assert run.over and run.completed == 4
            while not run.over:
                done += 1
        assert done == 0 and everything(saved.run) == before


def train(root: Path, until: int | None, total: int | None) -> tuple[int, int]:
    """Three epochs of ten updates; killed after update `until`. -> where it began, where it ended."""
    data = TensorDataset(torch.arange(160.0).reshape(20, 8))
    tracked = objects()
    loader = DataLoader(data, batch_size=2, sampler=ResumableSampler(data, seed=3))
    run = Run(root=root, checkpoint_every=10, total_steps=total, asynchronous=False, loader=loader, **tracked)
    try:
        with run:
            began = run.completed
            for _ in run.epochs(3):
                for (batch,) in run.batches(loader):
                    tracked["model"](batch).square().sum().backward()
                    tracked["optimizer"].step()
                    tracked["optimizer"].zero_grad()
                    run.step()
                    if run.completed == until and began < run.completed:
                        run.boundary()
                        raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return began, run.completed


@pytest.mark.parametrize("total", [30, None])
@pytest.mark.parametrize(("until", "again"), [(10, 10), (20, 20), (29, 20), (30, 30)])
def test_what_is_left_after_the_end_of_an_epoch_is_done(
    tmp_path: Path, until: int, again: int, total: int | None
) -> None:
    """R02: stopped at the end of the first and second epoch, one before the last update, and at the last."""
    assert train(tmp_path, until, total) == (0, until)
    assert train(tmp_path, None, total) == (again, 30)
    assert train(tmp_path, None, total) == (30, 30)


def test_a_script_that_has_enough_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R02: an end before the total is a fault unless the script wanted it; what it did is saved, its batches end."""
    (tmp_path / "rank").mkdir()
    monkeypatch.setenv("RELUME_RUN_DIR", str(tmp_path / "rank"))
    data = TensorDataset(torch.arange(160.0).reshape(20, 8))
    tracked = objects()
    loader = DataLoader(data, batch_size=2, sampler=ResumableSampler(data, seed=3))
    with Run(root=tmp_path, checkpoint_every=0, total_steps=30, loader=loader, **tracked) as run:
        with pytest.raises(ValueError, match="say why"):
            run.end_early("")
        assert not run.over
        for _ in run.epochs(3):
            for _ in run.batches(loader):
                run.step(loss=update(tracked))
                if run.completed == 14:
                    run.end_early("no better for two epochs")
    assert run.over and run.completed == survey(run.folder).choice.step == 14
    (end,) = [event for event in events(tmp_path / "rank") if event.get("name") == "finished"]
    assert end["data"] == {"step": 14, "early": "no better for two epochs"}


# --- R28: others' files, other runs, clocks ---------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [-1e7, 1e7])
def test_neither_foreign_files_nor_clocks_nor_another_run_decide(
    saved: Saved, skew_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: files of somebody else with higher steps, a run of another id in the same root, and a clock that jumped."""
    for name in ("last.ckpt", "last-v1.ckpt", "step_99999.pt", "step-61240"):
        (saved.run / name).write_bytes(b"x")
        (saved.root / name).write_bytes(b"x")
    other = objects()
    with Run(root=saved.root, run_id="tj-00000000beef", checkpoint_every=0, **other) as run:
        assert run.completed == 0
        for _ in range(9):
            run.step(loss=update(other))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew_s)
    tracked = objects()
    with Run(root=saved.root, run_id=saved.run.name, checkpoint_every=1, asynchronous=False, **tracked) as run:
        assert run.completed == 4
        run.step(loss=update(tracked))
    monkeypatch.undo()
    with Run(root=saved.root, run_id=saved.run.name, checkpoint_every=0, **objects()) as run:
        assert run.completed == 5
    assert all((saved.run / name).read_bytes() == b"x" for name in ("last.ckpt", "step-61240"))
