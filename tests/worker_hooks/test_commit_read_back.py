"""*Committed* becomes *verified* when every byte was read back from storage; what does not match is quarantined."""

import json
from pathlib import Path

import pytest
import torch

from tests.worker_hooks.conftest import World
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.protocol import generations
from worker_hooks.training.saving import read_back
from worker_hooks.training.saving.background import wait_until
from worker_hooks.training.saving.read_back import ReadBack

pytestmark = pytest.mark.torch
__all__ = ["run_dir"]


def saved(tmp_path: Path) -> Path:
    with Run(model=torch.nn.Linear(300, 300), root=tmp_path) as run:
        run.step(loss=1.0)
    return run.folder / "step-00000001.g1"


def read_through(folder: Path) -> ReadBack:
    read = ReadBack(folder, 0)
    while read.step() > 0.0:
        pass
    return read


def test_an_idle_run_reads_back_what_it_committed(tmp_path: Path, run_dir: Path) -> None:
    with Run(model=torch.nn.Linear(300, 300), root=tmp_path, checkpoint_every=1) as run:
        run.step(loss=1.0)
        folder = run.folder / "step-00000001.g1"
        assert wait_until((folder / "verified.json").exists, 60)
    note = json.loads((folder / "verified.json").read_text())
    (record,) = [event for event in events(run_dir) if event.get("state") == "verified"]
    rank_file = generations.read_rank_file(folder, 0)
    assert note["bytes"] == record["bytes"] == sum(entry.bytes for entry in rank_file.files) + size(folder)
    assert note["manifest"] == read_back.manifest_digest(folder) and note["ranks"] == 1


def size(folder: Path) -> int:
    return (folder / "rank-00000.json").stat().st_size


def test_two_ranks_read_each_others_shares(world: World) -> None:
    world.finish(2, total=4, stay_until="verified.json")
    (folder,) = world.run.glob("step-00000004.g1")
    reports = [json.loads((folder / read_back.report_name(rank)).read_text()) for rank in (0, 1)]
    assert [(report["rank"], report["by"], report["problem"]) for report in reports] == [(0, 1, None), (1, 0, None)]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["rank-00000.d/tensors.bin", "rank-00000.d/index.json", "rank-00000.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_bytes_that_storage_changed_are_found_and_named(tmp_path: Path, run_dir: Path, name: str, damage: str) -> None:
    folder = saved(tmp_path)
    path = folder / name
    if damage == "flip":
        flip(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    problem = read_through(folder).problem
    assert problem is not None and name in problem


def test_a_sound_checkpoint_has_no_problem(tmp_path: Path, run_dir: Path) -> None:
    assert read_through(saved(tmp_path)).problem is None


def test_what_was_read_back_wrong_is_quarantined_by_rank_0(tmp_path: Path, run_dir: Path) -> None:
    with Run(model=torch.nn.Linear(300, 300), root=tmp_path, checkpoint_every=0) as run:
        saver = run._attempt._saver
        saver._read_back = lambda: 60.0  # type: ignore[method-assign]
        run._attempt.completed = 1
        run._attempt._save(must=True)
        folder = run.folder / "step-00000001.g1"
        assert wait_until((folder / "manifest.json").exists, 30)
        flip(folder / "rank-00000.d/tensors.bin")
        read = read_through(folder)
        read_back.write_report(read, by=0, now=1.0)
        saver._background.wake()
        assert wait_until((folder / "quarantine.json").exists, 30)
    reason = json.loads((folder / "quarantine.json").read_text())["reason"]
    assert reason == "rank-00000.d/tensors.bin read back from storage does not match its digest"
    assert generations.accepted_folders(run.folder) == []


def test_a_report_about_another_manifest_verifies_nothing(tmp_path: Path, run_dir: Path) -> None:
    folder = saved(tmp_path)
    read = read_through(folder)
    read_back.write_report(read, by=0, now=1.0)
    report = folder / read_back.report_name(0)
    report.write_text(json.dumps(json.loads(report.read_text()) | {"manifest": "sha256:" + "0" * 64}))
    from worker_hooks.training.saving.commit import _report

    assert _report(folder, 0) is None


@pytest.mark.parametrize("length", [0, 1, 4096, read_back.PIECE, read_back.PIECE + 5])
def test_pieces_are_the_file(tmp_path: Path, length: int) -> None:
    data = bytes(range(256)) * (length // 256 + 1)
    (tmp_path / "file").write_bytes(data[:length])
    assert b"".join(bytes(piece) for piece in read_back.pieces(tmp_path / "file")) == data[:length]
