"""A folder of checkpoints that others may write to: nothing in it makes a reader hang, swell or run code."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker_hooks.checkpoint_shelf import NOW, Shelf
from worker_hooks.cli.checkpoints_list import listing
from worker_hooks.protocol import generations, minting
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.losses import read_losses
from worker_hooks.protocol.manifest import MANIFEST, encode_manifest, sealed
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import NotRegular, open_regular, read_small

MEMORY = 1 << 30
# In a process of its own, because the fault would be one that does not end, and with little memory.
RUN = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
from worker_hooks.cli.main import main
assert all(main(["checkpoints", *argv]) in (0, 1, 2) for argv in json.loads(sys.argv[1]))
"""


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def enormous(path: Path) -> None:
    """A hole takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(64 << 30)


def bomb(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Touch(path.parent / "unpickled")))


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


ATTACKS = [pipe, endless, circle, enormous, bomb]
FILES = [
    *("step-00000020.g1/manifest.json", "step-00000020.g1/rank-00000.json", "step-00000020.g1/rank-00000.d/index.json"),
    *("step-00000020.g1/rank-00000.d/tensors.bin", "step-00000020.g1/verified.json", "generations/000001.json"),
    *("latest", "step-00000020.g1/quarantine.json"),
]


def relume(*commands: list[str]) -> str:
    """One process for all, which costs most of the time."""
    argv = [sys.executable, "-c", RUN, json.dumps(commands)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def two(shelf: Shelf) -> Shelf:
    shelf.mint()
    shelf.commit(10, 1)
    shelf.commit(20, 1)
    (shelf.run / "latest").write_text("step-00000020.g1\n")
    return shelf


@pytest.mark.pure
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_file_makes_the_commands_hang_or_swell(two: Shelf, attack: Callable[[Path], None]) -> None:
    for name in FILES:
        path, kept = two.run / name, two.run.parent / "kept"
        if path.exists():
            path.rename(kept)
        attack(path)
        relume(
            ["list", str(two.run)],
            ["verify", str(two.run), "--json"],
            ["prune", str(two.run), "--keep", "1"],
            ["diff", str(two.run / "step-00000020.g1"), str(two.run / "step-00000010.g1"), "--values"],
        )
        path.unlink()
        if kept.exists():
            kept.rename(path)
    assert not list(two.run.rglob("unpickled"))


@pytest.mark.pure
@pytest.mark.parametrize("attack", ATTACKS)
def test_one_bad_name_among_files_of_others_hides_none_of_them(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    (tmp_path / "shard_0.pt").write_bytes(b"x" * 10)
    (tmp_path / "shard_1.pt").write_bytes(b"x" * 10)
    attack(tmp_path / "shard_2.pt")
    alone = tmp_path / "alone"
    alone.mkdir()
    attack(alone / "step_7.pt")
    attack(tmp_path / "latest")
    attack(alone / "trainer_state.json")
    shown = relume(*([command, str(tmp_path)] for command in ("list", "verify")), ["list", str(alone), "--json"])
    named = "shard_0.pt: 10 bytes, the longest" if attack in (enormous, bomb) else "do not load it: shard_2.pt: "
    assert named in shown and not list(tmp_path.rglob("unpickled"))


@pytest.mark.pure
@pytest.mark.parametrize("end", ["1e400", "-1", "null", '"1"', "9" * 5000])
def test_a_header_with_any_number_is_a_broken_header(tmp_path: Path, end: str) -> None:
    header = f'{{"a": {{"dtype": "F32", "shape": [1], "data_offsets": [0, {end}]}}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    shown = relume(["list", str(tmp_path)])
    assert "do not load it: " in shown and "to resume from: none" in shown


@pytest.mark.pure
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_stands_for_a_manifest_is_said_by_name(two: Shelf, attack: Callable[[Path], None]) -> None:
    manifest = two.run / "step-00000020.g1" / MANIFEST
    manifest.unlink()
    attack(manifest)
    (run,) = listing(two.run, NOW)["runs"]
    newest = run["checkpoints"][0]
    assert newest["state"] == "damaged" and newest["reason"].startswith(f"{MANIFEST}: ")
    assert run["resume"]["folder"] == "step-00000010.g1"


@pytest.mark.pure
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_token_is_taken_from_a_generation_file_that_is_none(two: Shelf, attack: Callable[[Path], None]) -> None:
    path = generations.generation_path(two.run, 1)
    path.unlink()
    attack(path)
    made = minting.mint(two.run, node="gpu2", world_size=1, now=NOW)
    assert made.generation == 2 and set(made.accepted) == {"step-00000020.g1", "step-00000010.g1"}
    assert made.problem is not None and "000001.json" in made.problem


@pytest.mark.pure
@pytest.mark.parametrize("ranks", [10**9, 10**12])
def test_a_number_of_ranks_that_no_job_has_costs_nothing(two: Shelf, ranks: int) -> None:
    folder = two.run / "step-00000020.g1"
    said = encode_manifest(generations.read_manifest(folder)) | {"world_size": ranks}
    (folder / MANIFEST).write_bytes(encode_json(sealed(said)))
    with pytest.raises(MessageError, match=f"expected ranks 0 to {ranks - 1}"):
        generations.read_manifest(folder)
    two.write(30, 1, run={"world_size": ranks, "digest_algorithm": "sha256"})
    shown = relume(["list", str(two.run)], ["verify", str(two.run), "--all"])
    assert "step-00000030.g1  no rank file" in shown and "good     tj-4f2a9c0b11de/step-00000010.g1" in shown


@pytest.mark.pure
@pytest.mark.parametrize("attack", [*ATTACKS, Path.mkdir, lambda path: path.write_bytes(b"[" * 200_000)])
def test_losses_that_are_no_losses_are_none(two: Shelf, attack: Callable[[Path], object]) -> None:
    path = two.run / "losses" / "rank-00000.g1.jsonl"
    path.parent.mkdir()
    attack(path)
    assert read_losses(two.run, 0) == {}


@pytest.mark.pure
def test_a_file_that_grew_is_read_no_further_than_was_written(two: Shelf) -> None:
    """A hole of many gigabytes at its end would keep the command busy for an hour."""
    with (two.run / "step-00000020.g1" / "rank-00000.d" / "tensors.bin").open("r+b") as file:
        file.truncate(64 << 30)
    said = relume(["verify", str(two.run)])
    assert f"rank-00000.d/tensors.bin has {64 << 30} bytes, 80 were written" in said
    assert "damaged tensors" not in said


@pytest.mark.pure
def test_what_is_no_file_is_no_file(tmp_path: Path) -> None:
    for attack in (pipe, endless, circle):
        path = tmp_path / attack.__name__
        attack(path)
        with pytest.raises(NotRegular, match="not a file"):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    enormous(tmp_path / "enormous")
    with pytest.raises(ValueError, match="more than any that was written"):
        read_small(tmp_path / "enormous")
    (tmp_path / "small").write_bytes(b"abc")
    assert read_small(tmp_path / "small") == b"abc"


@pytest.mark.torch
@pytest.mark.parametrize("attack", [pipe, endless, circle])
@pytest.mark.parametrize("name", ["rank-00000.json", "rank-00000.d/index.json", "rank-00000.d/tensors.bin"])
def test_a_resume_takes_it_for_damage_and_does_not_wait(two: Shelf, attack: Callable[[Path], None], name: str) -> None:
    """As an error of the storage it would keep every later attempt from starting; a pipe would hold it for ever."""
    from worker_hooks.training.resuming.soundness import Damaged, inspect

    folder = two.run / "step-00000020.g1"
    (ref,) = generations.read_manifest(folder).ranks
    inspect(folder, ref, sizes=True)
    (folder / name).unlink()
    attack(folder / name)
    with pytest.raises(Damaged, match=f"{name} is not a file"):
        inspect(folder, ref, sizes=True)
