"""Files read in pieces by several threads, and what an index may say. Both versions of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.resume_stage import Saved, objects, save_steps
from worker_hooks.protocol import generations
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.manifest import encode_manifest
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.files import reading
from worker_hooks.training.files.digests import file_digest
from worker_hooks.training.resuming import share_reader
from worker_hooks.training.resuming.live_digests import compare
from worker_hooks.training.resuming.resume import choose
from worker_hooks.training.resuming.share_reader import SharesReader
from worker_hooks.training.resuming.soundness import problem
from worker_hooks.training.resuming.verify import state_checks
from worker_hooks.training.saving import share_writer
from worker_hooks.training.state.tracked import Tracked

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 640, 641, 1000])
def test_a_file_comes_whole_and_in_order(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 64 bytes: less than one, exactly some, a rest."""
    monkeypatch.setattr(reading, "PIECE", 64)
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert b"".join(bytes(piece) for piece in reading.pieces(tmp_path / "file")) == data


def test_views_are_filled_from_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BATCH", 32)
    paths = [tmp_path / "a", tmp_path / "b"]
    contents = [os.urandom(500) for _ in paths]
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
    wanted = [(0, 0, 500), (1, 3, 1), (1, 100, 100), (0, 499, 1), (1, 7, 0)]
    views = [memoryview(bytearray(size)) for _, _, size in wanted]
    reading.fill([(paths[n], start, view) for (n, start, _), view in zip(wanted, views, strict=True)])
    assert [bytes(view) for view in views] == [contents[n][start : start + size] for n, start, size in wanted]


def test_a_file_that_ends_too_early_is_said(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(EOFError, match="short ends at 3, 10 bytes were expected"):
        reading.fill([(tmp_path / "short", 0, memoryview(bytearray(10)))])


# --- regions ------------------------------------------------------------------------------------------------------


def test_rows_columns_and_other_layouts_are_read_right(tmp_path: Path) -> None:
    """Whole chunks go straight into the target; a strided target and a column go through memory of their own."""
    whole = torch.arange(24.0).view(4, 6)
    share_writer.save_share(tmp_path, 0, {"x": whole}, "crc32")
    straight, turned = torch.zeros(4, 6), torch.zeros(6, 4).t()
    for target in (straight, turned):
        share_reader.load_shares(tmp_path, 1, {"x": target})
        assert torch.equal(target, whole)


# --- the index ----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    return save_steps(tmp_path / "root", steps=1)


def rewrite(folder: Path, index: Callable[[dict[str, Any]], object], rank: Callable[[dict[str, Any]], object]) -> None:
    """Change the index and the rank file, and make every digest agree: what another writer would have left."""
    path = folder / "rank-00000.d/index.json"
    data = json.loads(path.read_text())
    index(data)
    path.write_bytes(encode_json(data))
    rank_file = json.loads((folder / "rank-00000.json").read_text())
    for entry in rank_file["files"]:
        at = folder / entry["name"]
        entry |= {"bytes": at.stat().st_size, "digest": file_digest(at, "sha256")}
    rank(rank_file)
    (folder / "rank-00000.json").write_bytes(encode_json(rank_file))
    manifest = encode_manifest(generations.read_manifest(folder))
    manifest["ranks"][0]["digest"] = file_digest(folder / "rank-00000.json", "sha256")
    (folder / "manifest.json").write_bytes(encode_json(manifest))


def as_version_1(folder: Path) -> None:
    def index(data: dict[str, Any]) -> None:
        data["version"] = 1
        assert {chunk.pop("file") for chunk in data["chunks"]} == {"tensors.bin"}
        for chunk in data["chunks"]:
            del chunk["digest"]

    def rank(data: dict[str, Any]) -> None:
        for key in ("version", "settings", "replicas"):
            data["fingerprint"].pop(key, None)
        data["fingerprint"] |= {"parameters": "crc32:00000000", "buffers": "crc32:00000000"}

    rewrite(folder, index, rank)


def test_version_1_is_read_and_compared_with_digests_of_its_bytes(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_version_1(saved.folder(1))
    assert saved.resume() == (1, saved.states[1])
    monkeypatch.setenv("RELUME_SABOTAGE", "weights")
    with pytest.raises(SystemExit):
        saved.resume()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["chunks"][0].update(file="../rank-00001.d/tensors.bin"), "the rank file does not list"),
        (lambda data: data["chunks"][0].update(file="/etc/passwd"), "the rank file does not list"),
        (lambda data: data["chunks"][0].update(bytes=4), "has 4 bytes for"),
        (lambda data: data["chunks"][0].update(start=1 << 40), "ends beyond"),
        (lambda data: data["chunks"][0].update(start=-64), "ends beyond"),
        (lambda data: data["tensors"][data["chunks"][0]["key"]].update(dtype="load"), "is no type of a tensor"),
        (lambda data: data.update(version=3), "newer than this reader knows"),
        (lambda data: data.update(chunks=[7]), "index.json"),
    ],
)
def test_an_index_that_agrees_with_its_digest_may_still_not_lead_anywhere(
    saved: Saved, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    rewrite(saved.folder(1), change, lambda data: None)
    found = problem(saved.folder(1), 0, 1)
    assert found is not None and said in found and found.startswith("rank-00000.d/index.json")


def test_what_differs_in_memory_is_named(saved: Saved) -> None:
    """The reader's digests against a model that was loaded, and against one in which one value moved."""
    tracked = Tracked()
    own = objects()
    tracked.add("model", own["model"])
    tracked.add("optimizer", own["optimizer"])
    source = choose(saved.run, Coordinator(), lambda *found: pytest.fail(str(found)))
    assert source is not None
    reader = SharesReader(saved.folder(1), 1)
    keys = source.keys(reader)
    share_reader.load_from(reader, {keys[f"model/{k}"]: v for k, v in own["model"].state_dict().items()})
    live = tracked.collect(1).shared
    assert compare(reader, keys, live).differing == []
    with torch.no_grad():
        own["model"][0].bias[3] += 1.0
    assert compare(reader, keys, live).differing == ["model/0.bias"]
    outcomes = {check.name: check for check in state_checks(source, tracked, step=1, world_size=1)}
    assert (outcomes["parameters"].outcome, outcomes["parameters"].why) == ("FAIL", "model/0.bias")
    assert compare(reader, keys, {"model/unknown": torch.zeros(1)}).elsewhere == ["model/unknown"]
