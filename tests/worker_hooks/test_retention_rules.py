"""Which checkpoints stay: the newest, the newest verified, the one an attempt started from, and those being read."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker_hooks.protocol import generations, leases, minting, trash
from worker_hooks.protocol.leases import being_read, reading
from worker_hooks.training.saving import retention

pytestmark = pytest.mark.torch


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "tj-4f2a9c0b11de"
    folder.mkdir()
    minting.mint(folder, node="n", world_size=1, now=1.0)
    for step in range(1, 7):
        (folder / f"step-{step:08d}.g1").mkdir()
        (folder / f"step-{step:08d}.g1/manifest.json").touch()
    return folder


def kept(run: Path, keep: int = 2, protected: tuple[str, ...] = ()) -> list[int]:
    retention.prune(run, 1, keep=keep, protected=protected)
    return [int(name[5:13]) for name in generations.accepted_folders(run)]


def verify(run: Path, *steps: int) -> None:
    for step in steps:
        (run / f"step-{step:08d}.g1/verified.json").touch()


def test_the_newest_are_kept_and_the_two_newest_verified_ones(run: Path) -> None:
    verify(run, 1, 2, 3)
    assert kept(run) == [6, 5, 3, 2]


def test_verified_ones_among_the_newest_count(run: Path) -> None:
    verify(run, 2, 5, 6)
    assert kept(run) == [6, 5]


def test_the_one_that_an_attempt_started_from_is_kept(run: Path) -> None:
    assert kept(run, protected=("step-00000001.g1",)) == [6, 5, 1]


def test_one_that_is_being_read_is_kept_until_it_no_longer_is(run: Path) -> None:
    with reading(run / "step-00000001.g1"):
        assert kept(run) == [6, 5, 1]
    assert kept(run) == [6, 5]


def test_a_reader_that_comes_while_the_folder_is_about_to_go_keeps_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is seen after the manifest was taken away, and the manifest comes back."""
    answers = [set(), {"step-00000001.g1"}]
    monkeypatch.setattr(trash, "being_read", lambda _: answers.pop(0) if answers else set())
    (run / "step-00000001.g1").rename(run / "away")
    for step in range(2, 5):
        (run / f"step-{step:08d}.g1").rename(run / f"other-{step}")
    (run / "away").rename(run / "step-00000001.g1")
    assert kept(run) == [6, 5, 1]
    assert [path.name for path in (run / "step-00000001.g1").iterdir()] == ["manifest.json"]


def test_a_lease_of_a_process_that_died_here_or_that_is_old_does_not_count(run: Path) -> None:
    code = "from worker_hooks.protocol.leases import reading; from pathlib import Path; import os\n" + (
        f"with reading(Path({str(run / 'step-00000001.g1')!r})): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    assert len(list((run / leases.READERS).iterdir())) == 1 and being_read(run) == set()
    elsewhere = run / leases.READERS / "step-00000002.g1.1.0123abcd.another-node"
    elsewhere.touch()
    assert being_read(run) == {"step-00000002.g1"}
    old = time.time() - leases.LEASE_S - 1
    os.utime(elsewhere, (old, old))
    assert being_read(run) == set()


def test_reading_goes_on_where_no_lease_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with reading(tmp_path / "file" / "step-00000001.g1"):
        pass


def test_the_manifest_goes_first(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle, no reader finds half a checkpoint that counts."""
    seen: list[Path] = []
    monkeypatch.setattr(trash.shutil, "rmtree", lambda path, **_: seen.append(path))
    retention.prune(run, 1, keep=5, protected=())
    (gone,) = seen
    assert gone.name.startswith(".trash-step-00000001.g1") and not (gone / "manifest.json").exists()
