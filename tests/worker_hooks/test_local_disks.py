"""Node-local saves on a disk that is full, cannot be used or does not answer: each costs its own tier's save alone."""

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.worker_hooks.local_stage import local_steps, node, records, shares, train
from tests.worker_hooks.test_training_telemetry import run_dir
from worker_hooks.protocol import generations
from worker_hooks.training.files import writing
from worker_hooks.training.tiers import local

pytestmark = pytest.mark.torch
__all__ = ["node", "run_dir"]


def failing_below(folder: Path, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    left = [times]

    def write(descriptor: int, data: memoryview) -> int:
        if left[0] and str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(str(folder)):
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)

    monkeypatch.setattr(writing, "write", write)


def test_a_full_local_disk_costs_that_local_save_and_no_more(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_below(node, monkeypatch, times=2)
    run = train(tmp_path / "root", tmp_path / "nvme", 6)
    failed = records(run_dir, "local", "failed")
    assert [record["step"] for record in failed] == [2, 4]
    assert all("No space left" in record["reason"] and "tensors.bin" in record["reason"] for record in failed)
    assert [record["step"] for record in records(run_dir, "shared")] == [4, 6]
    assert local_steps(run) == [6]
    assert shares(node / run.name) == [6], "what was half written made room"
    assert not (run / "local" / "step-00000002.g1").exists()


def test_what_is_half_written_makes_room_at_once(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_below(node, monkeypatch)
    run = train(tmp_path / "root", tmp_path / "nvme", 2)
    assert [record["step"] for record in records(run_dir, "local", "failed")] == [2]
    assert not list((node / run.name).rglob("*.bin")) and not list((run / "local").glob("step-*"))


def test_shared_storage_that_is_full_costs_no_local_save(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_below(tmp_path / "root", monkeypatch)
    run = train(tmp_path / "root", tmp_path / "nvme", 6)
    assert [record["step"] for record in records(run_dir, "shared", "failed")] == [4]
    assert local_steps(run) == [6, 4]


def test_a_local_folder_that_cannot_be_made_costs_no_training(tmp_path: Path, node: Path, run_dir: Path) -> None:
    node.parent.mkdir()
    node.write_text("a file where a folder should be")
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    assert [record["step"] for record in records(run_dir, "local", "failed")] == [2, 4]
    assert generations.accepted_folders(run) == ["step-00000004.g1"]


def test_a_disk_that_does_not_answer_is_given_up_and_shared_storage_has_its_turn(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits for it would otherwise wait for ever, and no save would begin on any rank."""
    forever = threading.Event()

    def write(descriptor: int, data: memoryview) -> int:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(str(node)):
            forever.wait(60)
        return os.write(descriptor, data)

    monkeypatch.setattr(writing, "write", write)
    monkeypatch.setattr(local, "time_for", lambda size: 0.5)
    run = train(tmp_path / "root", tmp_path / "nvme", 8)
    forever.set()
    failed = records(run_dir, "local", "failed")
    assert [record["step"] for record in failed] == [2, 4, 6, 8]
    assert f"{node / run.name} did not answer for 0 s" in failed[0]["reason"]
    assert "nothing more is tried there" in failed[1]["reason"]
    assert generations.accepted_folders(run) == ["step-00000008.g1", "step-00000004.g1"]
    assert local_steps(run) == []
