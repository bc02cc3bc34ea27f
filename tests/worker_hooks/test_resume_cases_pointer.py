"""Resume case R24 of a public report, with relatives: a quota met while the pointer is written, the data complete. The
same of the commit, of what is read back, of what is to be removed; and pointers that say whatever they like."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.resume_stage import Saved, objects, save_steps, update
from tests.worker_hooks.saved_run import made, one_run, saved
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.protocol import committing, generations, trash
from worker_hooks.protocol.durable import replace_file
from worker_hooks.protocol.survey import survey
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving import commit, read_back, save

pytestmark = pytest.mark.torch
__all__ = ["made", "one_run", "run_dir", "saved"]


def fails(number: int, name: str, times: int = 1 << 30) -> Callable[[Path, bytes], None]:
    left = [times]

    def write(path: Path, data: bytes) -> None:
        if path.name == name and left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        replace_file(path, data)

    return write


NUMBERS = (errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.EACCES)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_pointer_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """R24: all is committed, old ones make room as ever, the reason is told; the next attempt takes the highest."""
    monkeypatch.setattr(commit, "replace_file", fails(number, "latest"))
    tracked = objects()
    with Run(root=tmp_path, checkpoint_every=1, keep=2, asynchronous=False, **tracked) as run:
        (run.folder / "latest").write_text("step-00000000.g1\n")
        for _ in range(9):
            run.step(loss=update(tracked))
    kept = generations.accepted_folders(run.folder)
    assert kept[0] == "step-00000009.g1" and len(kept) <= 4, "retention does not wait for the pointer"
    told = [event["raw"] for event in events(run_dir) if event.get("code") == "checkpoint_tidy"]
    assert len(told) == 9 and all("latest" in raw and os.strerror(number) in raw for raw in told), told
    assert Saved(tmp_path, run.folder).resume()[0] == 9


@pytest.mark.parametrize("number", NUMBERS[::2])
def test_a_commit_that_cannot_be_written_loses_no_data(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """R24: for a moment, and for good. What every rank has written stays, and the next attempt commits it."""
    monkeypatch.setattr(committing, "replace_file", fails(number, "manifest.json", times=3))
    tracked = objects()
    for module in (commit, save):
        monkeypatch.setattr(module, "COMMIT_DEADLINE_S", 0.2)
    with pytest.raises(CheckpointError, match=os.strerror(number)), Run(root=tmp_path, keep=2, **tracked) as run:
        run.step(loss=update(tracked))
        run.step(loss=update(tracked))
        monkeypatch.setattr(committing, "replace_file", fails(number, "manifest.json"))
    (failed,) = [event for event in events(run_dir) if event.get("state") == "failed"]
    assert "manifest.json" in failed["reason"] and survey(run.folder).choice.step == 2
    monkeypatch.setattr(committing, "replace_file", replace_file)
    assert Saved(tmp_path, run.folder).resume()[0] == 2


def test_a_commit_that_fails_for_a_moment_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "replace_file", fails(errno.EDQUOT, "manifest.json", times=3))
    assert save_steps(tmp_path, steps=2).resume()[0] == 2


def test_a_share_that_cannot_be_read_back_is_given_up(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """R24: an error ends the reading; the next look must not take that end for the end of the file."""

    def broken(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    reading = read_back.ReadingBack(Identity(saved.run, 1, 0, 1))
    reading.add(saved.folder(4))
    monkeypatch.setattr(read_back, "pieces", broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        reading.step(60.0)
    monkeypatch.undo()
    assert [reading.step(60.0) for _ in range(3)] == [60.0] * 3
    assert not list(saved.folder(4).glob("*verified.json"))


@pytest.mark.parametrize("name", [read_back.report_name(0), "verified.json"])
def test_a_mark_that_cannot_be_written_verifies_nothing(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """R24: committed stays committed, and the reason is told."""
    module = commit if name == "verified.json" else read_back
    monkeypatch.setattr(module, "replace_file", fails(errno.EDQUOT, name))
    tracked = objects()
    with Run(root=tmp_path, checkpoint_every=1, asynchronous=False, **tracked) as run:
        run.step(loss=update(tracked))
        deadline = time.monotonic() + 30
        while not [event for event in events(run_dir) if event.get("code") == "checkpoint_tidy"]:
            assert time.monotonic() < deadline, "nobody was told"
            time.sleep(0.02)
    assert not list(run.folder.glob("*/verified.json")) and not list(run.folder.glob("*/quarantine.json"))
    assert not [event for event in events(run_dir) if event.get("state") == "verified"]
    assert Saved(tmp_path, run.folder).resume()[0] == 1


def leads_to(target: str) -> Callable[[Path], None]:
    return lambda latest: latest.symlink_to(target)


POINTERS: dict[str, Callable[[Path], Any]] = {
    "older": lambda latest: latest.write_text("step-00000001.g1"),
    "newer": lambda latest: latest.write_text("step-00000044.g1"),
    "absolute": lambda latest: latest.write_text(str(latest.parent / "step-00000001.g1")),
    "outside": lambda latest: latest.write_text("../tj-000000000000/step-00000009.g1"),
    "long": lambda latest: latest.write_bytes(b"a" * (1 << 20)),
    "a folder": Path.mkdir,
    "a link": leads_to("step-00000001.g1"),
    "a dangling link": leads_to("nowhere"),
    "a loop": leads_to("latest"),
}


@pytest.mark.parametrize("kind", POINTERS)
def test_wherever_the_pointer_points(saved: Saved, kind: str) -> None:
    """R24, R28: the highest committed one is taken, the run goes on saving, and old ones make room."""
    (saved.run / "latest").unlink()
    POINTERS[kind](saved.run / "latest")
    assert survey(saved.run).choice.step == 4
    tracked = objects()
    with Run(root=saved.root, checkpoint_every=1, keep=1, asynchronous=False, **tracked) as run:
        assert run.completed == 4
        for _ in range(4):
            run.step(loss=update(tracked))
    assert saved.resume()[0] == 8
    assert not (saved.run / "step-00000002.g1").exists() or (saved.run / "step-00000002.g1" / "verified.json").exists()


def test_a_step_that_is_there_already_is_saved_again(saved: Saved) -> None:
    """R24: steps 4 and 3 are set aside, and made anew beside what is kept for inspection."""
    for step in (3, 4):
        os.truncate(saved.folder(step) / "rank-00000.d/tensors.bin", 0)
    tracked = objects()
    with Run(root=saved.root, checkpoint_every=1, asynchronous=False, **tracked) as run:
        assert run.completed == 2
        run.step(loss=update(tracked))
        run.step(loss=update(tracked))
    assert generations.accepted_folders(saved.run)[:2] == ["step-00000004.g2", "step-00000003.g2"]
    assert saved.resume()[0] == 4


def test_a_folder_that_cannot_be_removed_keeps_no_other(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = trash.remove

    def refused(folder: Path) -> bool:
        if folder.name.startswith("step-00000001"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return remove(folder)

    monkeypatch.setattr(trash, "remove", refused)
    tracked = objects()
    with Run(root=saved.root, checkpoint_every=1, keep=1, asynchronous=False, **tracked) as run:
        for _ in range(6):
            run.step(loss=update(tracked))
    left = {name[:13] for name in generations.accepted_folders(saved.run)}
    assert "step-00000001" in left and not {"step-00000002", "step-00000003"} & left
