"""Whatever happens to a file of a checkpoint: the newest intact one is found, nothing corrupt is loaded, and the reason
names the file. Storage that does not answer is an error and accuses no checkpoint."""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.resume_stage import Saved, save_steps
from worker_hooks.training.errors import CheckpointError, RestartedFromScratch
from worker_hooks.training.files import reading
from worker_hooks.training.resuming import candidates

pytestmark = pytest.mark.torch

FILES = ("manifest.json", "rank-00000.json", "rank-00000.d/index.json", "rank-00000.d/tensors.bin")


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    return save_steps(tmp_path / "root")


def flip(path: Path, seed: int) -> None:
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    **{f"flip {seed}": lambda path, seed=seed: flip(path, seed) for seed in range(3)},  # type: ignore[misc]
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "zero bytes": lambda path: os.truncate(path, 0),
    "gone": Path.unlink,
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damage_to_every_file(saved: Saved, name: str, damage: str) -> None:
    """R20. A manifest that is gone is written again by the successor: everything it says is in the rank files."""
    folder = saved.folder(3)
    DAMAGE[damage](folder / name)
    step, state = saved.resume()
    assert state == saved.states[step], "what was loaded is not what was saved"
    if step == 3:
        # One bit of the manifest may say nothing about the state, such as the time of the commit.
        assert name == "manifest.json" and damage.startswith(("flip", "gone", "one byte"))
    else:
        assert step == 2
        reason = json.loads((folder / "quarantine.json").read_text())["reason"]
        assert name.rpartition("/")[2] in reason, reason


def test_the_reason_says_what_is_wrong(saved: Saved) -> None:
    data = saved.folder(3) / "rank-00000.d/tensors.bin"
    size = data.stat().st_size
    os.truncate(data, 100)
    (saved.folder(2) / "rank-00000.d/index.json").unlink()
    assert saved.resume()[0] == 1
    reasons = [json.loads((saved.folder(step) / "quarantine.json").read_text())["reason"] for step in (3, 2)]
    assert reasons[0] == f"rank-00000.d/tensors.bin has 100 bytes, {size} were written"
    assert reasons[1] == "rank-00000.d/index.json is missing"


@pytest.mark.parametrize(
    ("said", "kind"), [("step-00000001.g1", "stale"), ("step-00000077.g1", "dangling"), ("\0\xff", "dangling")]
)
def test_the_pointer_is_a_hint(saved: Saved, said: str, kind: str) -> None:
    """R24: the highest committed one counts; the pointer is reported, whatever it says."""
    (saved.run / "latest").write_text(said)
    assert saved.resume()[0] == 3
    (saved.run / "latest").write_text(said)
    assert f"latest is a {kind} pointer" in (candidates.pointer_problem(saved.run, "step-00000003.g1") or "")


def test_no_pointer_and_a_right_one_are_nothing_to_report(saved: Saved) -> None:
    assert candidates.pointer_problem(saved.run, "step-00000003.g1") is None
    (saved.run / "latest").unlink()
    assert candidates.pointer_problem(saved.run, "step-00000003.g1") is None
    assert saved.resume()[0] == 3


def test_foreign_folders_are_never_loaded(saved: Saved) -> None:
    """Another run's checkpoint under a higher step, somebody's files, and a folder that was never committed."""
    shutil.copytree(saved.folder(1), saved.run / "step-00000099.g1")
    (saved.run / "step-00000098.g1").mkdir()
    (saved.run / "step-00000098.g1" / "model.pt").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    (saved.run / "last.ckpt").write_bytes(b"x")
    assert saved.resume() == (3, saved.states[3])
    assert "manifest" in (saved.run / "step-00000099.g1" / "quarantine.json").read_text()
    assert not (saved.run / "step-00000098.g1" / "quarantine.json").exists()


def test_a_manifest_that_an_older_attempt_lost_is_written_again(saved: Saved) -> None:
    """It was accepted, so it counted once; without its manifest it would be cleared away as never committed."""
    assert saved.resume()[0] == 3
    (saved.folder(3) / "manifest.json").unlink()
    assert saved.resume() == (3, saved.states[3])
    assert (saved.folder(3) / "manifest.json").exists()


def test_a_lost_generation_file_does_not_hide_what_it_committed(saved: Saved) -> None:
    (saved.run / "generations" / "000001.json").unlink()
    assert saved.resume()[0] == 3


# --- storage that does not answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_outage_is_an_error_and_no_verdict(saved: Saved, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(number, os.strerror(number), "rank-00000.d/tensors.bin")

    monkeypatch.setattr(reading, "read_into", broken)
    with pytest.raises(CheckpointError, match=r"storage cannot be read.*rank 0.*tensors\.bin") as caught:
        saved.resume()
    assert not isinstance(caught.value, RestartedFromScratch)
    assert not list(saved.run.glob("*/quarantine.json"))


# --- nothing left -------------------------------------------------------------------------------------------------


def test_a_run_whose_checkpoints_are_all_bad_does_not_begin_again_by_itself(saved: Saved) -> None:
    """R28, also at the attempt after the one that found them bad."""
    for step in (1, 2, 3):
        flip(saved.folder(step) / "rank-00000.d/tensors.bin", 0)
    for _ in range(2):
        with pytest.raises(RestartedFromScratch, match=r"step-00000003\.g1: rank-00000\.d/tensors\.bin does not match"):
            saved.resume()
    assert saved.resume(fresh_start=True)[0] == 0


def test_a_run_that_never_committed_anything_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    saved = save_steps(tmp_path / "root", steps=1)
    shutil.rmtree(saved.folder(1))
    assert saved.resume()[0] == 0
