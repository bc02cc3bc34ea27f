"""`relume checkpoints diff`: what differs between two checkpoints, from their bytes alone."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.checkpoint_shelf import TENSORS, Shelf, Tensor, digest
from worker_hooks.cli import checkpoints_diff, checkpoints_values
from worker_hooks.cli.checkpoints_pieces import Pace
from worker_hooks.cli.checkpoints_stored import read_stored
from worker_hooks.cli.main import main

pytestmark = pytest.mark.pure


@pytest.fixture
def shelf(shelf: Shelf) -> Shelf:
    shelf.mint()
    return shelf


def floats(*values: float) -> bytes:
    return struct.pack(f"={len(values)}f", *values)


def vector(*values: float) -> dict[str, Tensor]:
    return {"model/w": ("float32", (len(values),), floats(*values))}


def diff(one: Path, other: Path, *, values: bool = False) -> dict[str, Any]:
    return checkpoints_diff.difference(one, other, values=values)


def test_a_checkpoint_and_itself_are_the_same(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shelf.commit(10, 1)
    assert diff(folder, folder)["same"] is True
    assert main(["checkpoints", "diff", str(folder), str(folder)]) == 0
    assert "the same: 2 tensors" in capsys.readouterr().out


def test_everything_that_differs_has_its_place(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    one = shelf.commit(10, 1)
    tensors = {
        "model/weight": ("float32", (2, 2), bytes(16)),
        "model/new": ("float32", (1,), bytes(4)),
        "optimizer/weight/exp_avg": ("float16", (2, 2), bytes(8)),
    }
    shelf.mint()
    other = shelf.commit(
        20,
        2,
        (tensors,),
        fingerprint={"step": 20, "learning_rate": [(0.25).hex()]},
        run={
            "world_size": 1,
            "digest_algorithm": "sha256",
            "threads": 4,
            "layout": {"world_size": 1, "tp": 2},
            "versions": {"torch": "2.14.0"},
        },
    )
    found = diff(one, other)
    assert found["same"] is False
    assert {leaf["what"] for leaf in found["head"]} == {"step", "generation", "threads"}
    assert found["learning_rate"] == {"a": [0.5], "b": [0.25]}
    assert found["layout"] == [{"what": "tp", "a": None, "b": 2, "only": "b"}]
    assert found["versions"] == [{"what": "torch", "a": "2.13.0", "b": "2.14.0"}]
    assert found["data"] == [{"rank": 0, "differs": [{"what": "consumed", "a": 10, "b": 20}]}]
    assert [leaf["what"] for leaf in found["random"][0]["differs"]] == ["python"]
    assert found["values"] == [{"what": "scheduler.last_epoch", "a": 10, "b": 20}]
    assert found["tensors"] == {
        "common": 2,
        "equal": 0,
        "only_a": [],
        "only_b": ["model/new"],
        "changed_kind": [{"key": "optimizer/weight/exp_avg", "a": "float32[2, 2]", "b": "float16[2, 2]"}],
        "differ": [{"key": "model/weight"}],
        "not_comparable": [],
    }
    assert main(["checkpoints", "diff", str(one), str(other)]) == 1
    out = capsys.readouterr().out
    assert "learning rate: [0.5] -> [0.25]" in out and "model/new" in out and "random state, rank 0:" in out


def test_random_state_is_told_for_each_rank(shelf: Shelf) -> None:
    one = shelf.commit(10, 1, (TENSORS, {}))
    path = shelf.commit(20, 1, (TENSORS, {})) / "rank-00001.json"
    rank = json.loads(path.read_bytes())
    rank["random"] = {**rank["random"], "python": digest(b"10"), "torch": digest(b"x")}
    path.write_text(json.dumps(rank))
    found = diff(one, path.parent)
    told = {item["rank"]: [leaf["what"] for leaf in item["differs"]] for item in found["random"]}
    assert told == {0: ["python"], 1: ["torch"]}


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("algorithms", [("sha256", "sha256"), ("sha256", "crc32")])
def test_old_indexes_and_other_algorithms_are_compared_by_the_bytes(
    shelf: Shelf, versions: tuple[int, int], algorithms: tuple[str, str]
) -> None:
    one = shelf.commit(10, 1, index_version=versions[0], algorithm=algorithms[0])
    same = shelf.commit(20, 1, index_version=versions[1], algorithm=algorithms[1])
    changed = {**TENSORS, "model/weight": ("float32", (2, 2), bytes(16))}
    other = shelf.commit(30, 1, (changed,), index_version=versions[1], algorithm=algorithms[1])
    assert diff(one, same)["tensors"]["equal"] == 2
    assert diff(one, other)["tensors"]["differ"] == [{"key": "model/weight"}]


def cut(shelf: Shelf, step: int, axis: int) -> Path:
    """A 2 x 2 tensor in two parts, one for each rank, along `axis`."""
    rows = [floats(1, 2), floats(3, 4)] if axis == 0 else [floats(1, 3), floats(2, 4)]
    sizes = (1, 2) if axis == 0 else (2, 1)
    parts = [{"model/w": ("float32", sizes, data)} for data in rows]
    folder = shelf.commit(step, 1, parts)
    for rank in range(2):
        path = folder / f"rank-{rank:05d}.d" / "index.json"
        index = json.loads(path.read_bytes())
        index["tensors"]["model/w"]["size"] = [2, 2]
        index["chunks"][0]["offsets"][axis] = rank
        path.write_text(json.dumps(index))
    return folder


def test_another_number_of_ranks_compares_whole_tensors(shelf: Shelf) -> None:
    whole = shelf.commit(10, 1, ({"model/w": ("float32", (2, 2), floats(1, 2, 3, 4))},))
    other = shelf.commit(20, 1, ({"model/w": ("float32", (2, 2), floats(1, 2, 3, 5))},))
    rows = cut(shelf, 30, 0)
    assert diff(whole, rows)["tensors"]["equal"] == 1
    assert diff(other, rows, values=True)["tensors"]["differ"] == [{"key": "model/w", "largest_difference": 1.0}]


def test_parts_that_do_not_correspond_are_said_to_be_not_comparable(shelf: Shelf) -> None:
    found = diff(cut(shelf, 10, 0), cut(shelf, 20, 1))
    assert found["tensors"]["not_comparable"] == ["model/w"] and found["same"] is False


@pytest.mark.parametrize(
    ("one", "other", "largest"),
    [
        ((1.0, 2.0), (1.5, 2.0), 0.5),
        ((1.0, math.nan), (1.25, math.nan), 0.25),
        ((1.0, math.nan), (1.0, 2.0), "NaN"),
        ((math.inf, 1.0), (math.inf, 3.0), 2.0),
        ((math.inf, 1.0), (-math.inf, 3.0), "Infinity"),
    ],
)
def test_the_largest_difference(
    shelf: Shelf, one: tuple[float, ...], other: tuple[float, ...], largest: object
) -> None:
    a, b = shelf.commit(10, 1, (vector(*one),)), shelf.commit(20, 1, (vector(*other),))
    assert diff(a, b, values=True)["tensors"]["differ"] == [{"key": "model/w", "largest_difference": largest}]


@pytest.mark.parametrize(
    ("dtype", "form", "values"),
    [
        ("float64", "d", (1.0, 4.0)),
        ("float16", "e", (1.0, 4.0)),
        ("int64", "q", (-1, 2)),
        ("int8", "b", (-1, 2)),
        ("bool", "?", (True, False)),
        ("bfloat16", None, (1.0, 4.0)),
        ("float8_e4m3fn", "B", (1, 2)),
    ],
)
def test_types(shelf: Shelf, dtype: str, form: str | None, values: tuple[float, float]) -> None:
    """bfloat16 is a float's upper half. A type that is not known is said not to be."""
    raw = [struct.pack("<f", value)[2:] if form is None else struct.pack(f"={form}", value) for value in values]
    a, b = (shelf.commit(10 * n, 1, ({"model/w": (dtype, (1,), raw[n - 1])},)) for n in (1, 2))
    (found,) = diff(a, b, values=True)["tensors"]["differ"]
    assert found["largest_difference"] == (None if dtype.startswith("float8") else abs(values[0] - values[1]))


def test_stretches_of_any_length_give_the_same_difference(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    a = shelf.commit(10, 1, (vector(*range(100)),))
    b = shelf.commit(20, 1, (vector(*range(99), 200.0),))
    stored = read_stored(a), read_stored(b)
    for stretch in (4, 12, 64, 1 << 18):
        monkeypatch.setattr(checkpoints_values, "_STRETCH", stretch)
        assert checkpoints_values.largest_difference(*stored, "model/w", Pace()) == 101.0


def test_a_file_that_is_too_short_is_2_and_says_to_verify(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = shelf.commit(10, 1, (vector(1, 2, 3),)), shelf.commit(20, 1, (vector(1, 2, 4),))
    (a / "rank-00000.d" / "tensors.bin").write_bytes(floats(1))
    assert main(["checkpoints", "diff", str(a), str(b), "--values"]) == 2
    assert "verify both" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.json", "rank-00000.d/index.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"version": 3}'])
def test_what_cannot_be_read_is_2_and_named(
    shelf: Shelf, name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = shelf.commit(10, 1), shelf.commit(20, 1)
    (b / name).write_text(content)
    assert main(["checkpoints", "diff", str(a), str(b)]) == 2
    assert b.name in capsys.readouterr().err


def test_an_index_that_points_outside_is_refused(shelf: Shelf) -> None:
    a, b = shelf.commit(10, 1), shelf.commit(20, 1)
    path = b / "rank-00000.d" / "index.json"
    path.write_text(path.read_text().replace('"tensors.bin"', '"../../../etc/passwd"'))
    assert main(["checkpoints", "diff", str(a), str(b)]) == 2


def test_no_checkpoint_folder_is_2(tmp_path: Path) -> None:
    assert main(["checkpoints", "diff", str(tmp_path), str(tmp_path)]) == 2
