"""`relume checkpoints verify` on folders of ours, without torch."""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_hooks.checkpoint_shelf import NOW, TENSORS, Shelf, flip, verify
from worker_hooks.cli import checkpoints_pieces, checkpoints_verify
from worker_hooks.cli.checkpoints_list import lines, listing
from worker_hooks.cli.main import main
from worker_hooks.protocol import generations
from worker_hooks.protocol.leases import being_read

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("algorithm", ["sha256", "crc32"])
def test_what_is_whole_verifies(shelf: Shelf, version: int, algorithm: str) -> None:
    shelf.mint()
    shelf.commit(10, 1, (TENSORS, TENSORS), index_version=version, algorithm=algorithm)
    found = verify(shelf.run)
    assert [item["result"] for item in found["checkpoints"]] == ["good"]
    assert checkpoints_verify.exit_code(found) == 0
    assert found["checkpoints"][0]["files"] == 6 and found["bytes"] > 2 * 80


@pytest.mark.parametrize(("offset", "tensors"), [(3, ["model/weight"]), (64, ["optimizer/weight/exp_avg"]), (40, [])])
def test_a_flipped_bit_names_the_file_and_the_tensor(shelf: Shelf, offset: int, tensors: list[str]) -> None:
    """Byte 40 is padding: the file is bad, no tensor is."""
    shelf.mint()
    folder = shelf.commit(10, 1, (TENSORS, TENSORS))
    flip(folder / "rank-00001.d" / "tensors.bin", offset)
    found = verify(shelf.run)
    (item,) = found["checkpoints"]
    assert (item["result"], item["tensors"]) == ("bad", tensors)
    assert item["problems"] == ["rank-00001.d/tensors.bin does not match its digest"]
    assert checkpoints_verify.exit_code(found) == 1


@pytest.mark.parametrize("name", ["rank-00000.json", "rank-00000.d/index.json", "rank-00000.d/tensors.bin"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_of_every_file_is_found(shelf: Shelf, name: str, damage: str) -> None:
    shelf.mint()
    path = shelf.commit(10, 1) / name
    if damage == "flip":
        flip(path, path.stat().st_size // 2)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    (item,) = verify(shelf.run)["checkpoints"]
    assert item["result"] == "bad" and any(Path(name).name in problem for problem in item["problems"])


def test_pieces_of_any_length_give_the_same_word(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that lies in many pieces, and pieces that hold many tensors."""
    tensors = {f"model/{n}": ("uint8", (n,), bytes(n % 251 for _ in range(n))) for n in (0, 1, 63, 64, 65, 300)}
    shelf.mint()
    folder = shelf.commit(10, 1, (tensors,))
    for piece in (1, 7, 64, 1000):
        monkeypatch.setattr(checkpoints_pieces, "PIECE", piece)
        assert verify(shelf.run)["checkpoints"][0]["result"] == "good"
    flip(folder / "rank-00000.d" / "tensors.bin", (folder / "rank-00000.d" / "tensors.bin").stat().st_size - 1)
    assert verify(shelf.run)["checkpoints"][0]["tensors"] == ["model/300"]


def test_what_does_not_count_is_skipped_unless_asked_for(shelf: Shelf) -> None:
    shelf.mint()
    bad = shelf.commit(10, 1)
    flip(bad / "rank-00000.d" / "tensors.bin", 0)
    generations.quarantine(bad, reason="a flipped bit", generation=1, now=NOW)
    assert checkpoints_verify.exit_code(verify(shelf.run)) == 2  # nothing was checked
    shelf.commit(20, 1)
    found = verify(shelf.run)
    assert checkpoints_verify.exit_code(found) == 0
    assert [item["folder"] for item in found["skipped"]] == ["step-00000010.g1"]
    assert checkpoints_verify.exit_code(verify(shelf.run, everything=True)) == 1
    assert checkpoints_verify.exit_code(verify(bad)) == 1


def test_a_copy_elsewhere_verifies_and_nothing_is_left_beside_it(shelf: Shelf, tmp_path: Path) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    (tmp_path / "backup").mkdir()
    copy = folder.rename(tmp_path / "backup" / folder.name)
    assert [item["result"] for item in verify(copy)["checkpoints"]] == ["good"]
    assert [entry.name for entry in (tmp_path / "backup").iterdir()] == [folder.name]


def test_retention_leaves_what_is_being_verified_alone(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    seen: list[set[str]] = []
    real = checkpoints_verify.pieces

    def look_meanwhile(*args: Any) -> Any:
        seen.append(being_read(shelf.run))
        return real(*args)

    monkeypatch.setattr(checkpoints_verify, "pieces", look_meanwhile)
    assert checkpoints_verify.exit_code(verify(shelf.run)) == 0
    assert seen == [{folder.name}] * 3 and being_read(shelf.run) == set()


def test_progress_is_one_line_on_standard_error(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    monkeypatch.setattr(checkpoints_verify, "_BLINK_S", -1.0)
    verify(shelf.run, progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "%" in captured.err and "\n" not in captured.err


def test_a_limit_makes_it_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: sum(rests))
    monkeypatch.setattr("time.sleep", rests.append)
    pace = checkpoints_pieces.Pace(limit=100.0)
    for _ in range(4):
        pace.read(50)
    assert rests == pytest.approx([0.5] * 4)


def test_a_missing_package_is_named(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    xxhash = pytest.importorskip("xxhash")
    shelf.mint()
    folder = shelf.commit(10, 1)
    path = folder / "rank-00000.json"
    rank = json.loads(path.read_bytes())
    for entry in rank["files"]:
        entry["digest"] = "xxh3_128:" + xxhash.xxh3_128((folder / entry["name"]).read_bytes()).hexdigest()
    path.write_text(json.dumps(rank))
    (folder / "manifest.json").unlink()
    assert main(["checkpoints", "verify", str(shelf.run)]) == 0
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert main(["checkpoints", "verify", str(shelf.run)]) == 2
    assert "pip install xxhash" in capsys.readouterr().err


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("flip", "cut", "zeros", "folder", "gone")))
def test_whatever_is_damaged_the_list_comes_and_verify_never_calls_it_good(
    tmp_path_factory: pytest.TempPathFactory, seed: int, damage: str
) -> None:
    shelf = Shelf(tmp_path_factory.mktemp("any"))
    shelf.mint()
    folder = shelf.commit(10, 1, (TENSORS, TENSORS), verified=True)
    chance = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "verified.json")
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    before = bytes(data)
    if damage == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif damage == "cut":
        del data[chance.randrange(len(data)) :]
    elif damage == "zeros":
        data = bytearray(len(data))
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(data)
    assert "".join(lines(listing(shelf.run, NOW)))
    checked = verify(folder)["checkpoints"]
    if path.name == "manifest.json":
        return  # nothing holds its digest: a bit of its time may flip unseen
    assert bytes(data) == before or [item["result"] for item in checked] == ["bad"]
