"""Every file of a run's folder, damaged in every way, on one and on two ranks: the newest intact checkpoint is found,
nothing corrupt is loaded, nothing good is deleted, and somebody names the file.

Every case is a copy of one folder, resumed for one update by ranks that live on. `RELUME_FULL=1` damages every file in
every way; the tests do so to the checkpoint that comes next, and on one rank to the run's own files, with one damage to
each file of the other checkpoints.
"""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import HERE, RUN_ID, ForkServer, World
from worker_hooks.cli.main import main as relume
from worker_hooks.protocol.manifest import MANIFEST, parse_folder

pytestmark = pytest.mark.torch

SHELVES = HERE / "programs" / "shelves.py"
FULL = bool(os.environ.get("RELUME_FULL"))
NEWEST, QUARANTINED = "step-00000008.g2", "step-00000009.g2"
GENERATION = "generations/000003.json"
NOTES = ("verified.json", "quarantine.json")  # what others say about a checkpoint, no part of it


def flip(path: Path, dice: random.Random) -> None:
    """One bit anywhere, in place: a hard link shares it."""
    with path.open("r+b") as file:
        at = dice.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0] ^ 1 << dice.randrange(8)
        file.seek(at)
        file.write(bytes([byte]))


DAMAGE: dict[str, Callable[[Path, random.Random], Any]] = {
    "flipped": flip,
    "cut": lambda path, dice: os.truncate(path, dice.randrange(1, path.stat().st_size)),
    "emptied": lambda path, _: os.truncate(path, 0),
    "deleted": lambda path, _: path.unlink(),
}


class Shelf:
    """A run that was interrupted twice, with what each rank held after each update.

    Steps 4 (generation 1) and 5 to 8 (generation 2) count and were read back; 9 of generation 2 is quarantined.
    """

    def __init__(self, server: ForkServer, folder: Path, ranks: int) -> None:
        self.ranks = ranks
        self._world = World(server, folder)
        self.run = self._world.run
        for steps in (4, 9):
            self._start(root=str(self._world.root), steps=steps)
        flip(self.run / QUARANTINED / "rank-00000.d/tensors.bin", random.Random(0))
        self._start(root=str(self._world.root), steps=8)
        assert (self.run / QUARANTINED / "quarantine.json").exists() and not [*self.run.glob("*.g3")]
        assert relume(["checkpoints", "prune", str(self.run), "--keep", "5", "--yes", "--force", "test"]) == 0
        (self.run / "readers" / f"{NEWEST}.1.0badcafe.elsewhere").touch()
        self.files = {str(path.relative_to(self.run)): path.read_bytes() for path in _files(self.run)}

    def state(self, rank: int, step: int) -> str:
        return Path(f"{self._world.root}.{rank}.{step}").read_text()

    def copy(self, folder: Path) -> Path:
        """The checkpoint root in `folder`, with its hard links."""
        folder.mkdir()
        subprocess.run(["cp", "-a", str(self._world.root), str(folder / "root")], check=True, timeout=60)
        return folder / "root"

    def resume(self, roots: list[Path]) -> "list[Resumed]":
        cases = []
        for root in roots:
            out, run_dir = root.parent / "out", root.parent / "run_dir"
            run_dir.mkdir()
            cases.append({"root": str(root), "out": str(out), "run_dir": str(run_dir)})
        text = self._start(cases=cases)
        return [Resumed.read(root, self.ranks, text) for root in roots]

    def _start(self, **asked: Any) -> str:
        ranks = self._world.start(SHELVES, [json.dumps(asked)], self.ranks)
        assert ranks.wait(600 if FULL else 200) == [0] * self.ranks, ranks.text()
        return ranks.text()


@dataclass(frozen=True)
class Resumed:
    """What the ranks found, and everything that was said about it."""

    run: Path
    found: list[dict[str, Any]]
    said: str

    @classmethod
    def read(cls, root: Path, ranks: int, log: str) -> "Resumed":
        found = [json.loads((root.parent / f"out.{rank}.json").read_text()) for rank in range(ranks)]
        notes = [path.read_text(errors="replace") for path in (root / RUN_ID).glob("step-*/quarantine.json")]
        events = [path.read_text() for path in (root.parent / "run_dir").glob("events-*.jsonl")]
        return cls(root / RUN_ID, found, "\n".join([*notes, *events, json.dumps(found), log]))


def _files(run: Path) -> Iterator[Path]:
    return (path for path in sorted(run.rglob("*")) if path.is_file())


def _folder_of(name: str) -> str | None:
    """The checkpoint that a file is part of, by its path in the run."""
    folder, _, rest = name.partition("/")
    return folder if parse_folder(folder) and not rest.endswith(NOTES) else None


def damages(shelf: Shelf) -> Iterator[tuple[str, str]]:
    dice = random.Random(shelf.ranks)
    for name, data in shelf.files.items():
        newest = _folder_of(name) == NEWEST
        some = [*DAMAGE] if newest or _folder_of(name) is None else [dice.choice([*DAMAGE])]
        for kind in DAMAGE if FULL else some if newest or shelf.ranks == 1 else ():
            if data or kind == "deleted":
                yield name, kind


@pytest.mark.parametrize("ranks", [1, 2])
def test_whatever_happens_to_a_file(fork_server: ForkServer, tmp_path: Path, ranks: int) -> None:
    (tmp_path / "shelf").mkdir()
    shelf = Shelf(fork_server, tmp_path / "shelf", ranks)
    cases = [*damages(shelf)]
    assert len(cases) >= 32
    roots, before = [], []
    for number, (name, kind) in enumerate(cases):
        root = shelf.copy(tmp_path / str(number))
        DAMAGE[kind](root / RUN_ID / name, random.Random(f"{ranks} {name} {kind}"))
        roots.append(root)
        before.append(intact(shelf, root / RUN_ID))
    wrong = []
    for (name, kind), good, resumed in zip(cases, before, shelf.resume(roots), strict=True):
        for problem in problems(shelf, name, kind, good, resumed):
            wrong.append(f"{name} {kind}: {problem}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)}", *wrong])


def intact(shelf: Shelf, run: Path) -> set[str]:
    """The checkpoints that count and of which every byte is as it was written."""
    folders = {folder for name in shelf.files if (folder := _folder_of(name))} - {QUARANTINED}
    return folders - {_folder_of(name) for name, data in shelf.files.items() if _bytes(run / name) != data}


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def problems(shelf: Shelf, name: str, kind: str, good: set[str], resumed: Resumed) -> Iterator[str]:
    folder = _folder_of(name)
    expected = {max(good)}
    if folder is not None and name.endswith(MANIFEST):
        expected.add(NEWEST)  # everything it says is in the rank files; it may be written again
    for rank, found in enumerate(resumed.found):
        if "saved" not in found:
            yield f"rank {rank}: {found}"
        elif f"step-{found['step']:08d}" not in {item.partition(".")[0] for item in expected}:
            yield f"rank {rank} began at step {found['step']}"
        elif found["state"] != shelf.state(rank, found["step"]):
            yield f"rank {rank} holds something else than what was saved at step {found['step']}"
    for kept in sorted(good):
        if kept not in intact(shelf, resumed.run) or (resumed.run / kept / "quarantine.json").exists():
            yield f"{kept} was good and is not any more"
    if folder is not None and not (resumed.run / folder).exists():
        yield f"{folder} is gone and cannot be looked at"
    passed_over = folder == NEWEST and resumed.found[0].get("step") != 8
    replaced = name == GENERATION and kind != "deleted"  # a number that is gone is given again
    if (passed_over or replaced) and name.partition("/")[2] not in resumed.said:
        yield "nobody names the file"
