"""Files read once into their places and digested beside, and what an index may say. Both versions of it."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.resume_stage import Saved, look, objects, save_steps
from tests.worker_hooks.share_folder import as_version_1, load_shares, rewrite
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.files import reading
from worker_hooks.training.files.digests import bytes_digest, file_digest, new_hasher
from worker_hooks.training.files.reading import Reading, Segment
from worker_hooks.training.resuming import live_digests
from worker_hooks.training.resuming.live_digests import compare
from worker_hooks.training.resuming.soundness import Damaged
from worker_hooks.training.resuming.verify import state_checks
from worker_hooks.training.saving import share_writer
from worker_hooks.training.state.tracked import Tracked

pytestmark = pytest.mark.torch


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 64 bytes and of three segments: segments cut, windows filled exactly, rests."""
    monkeypatch.setattr(reading, "WINDOW", 64)
    monkeypatch.setattr(reading, "_VIEWS", 3)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 640, 641, 1000])
def test_a_file_is_digested_whole_and_in_order(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert file_digest(tmp_path / "file", "sha256") == bytes_digest(data, "sha256")


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("most", [10_000, 7])
def test_bytes_go_to_their_places_and_into_their_digests(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours, what nobody wants, an empty one, a jump, and a kernel that gives less than it was asked for."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, views, at: preadv(file, [next(filter(len, views))[:most]], at))
    data = os.urandom(1000)
    (tmp_path / "file").write_bytes(data)
    here = [(0, 10), (10, 0), (10, 200), (210, 3), (213, 50), (400, 70), (470, 530)]
    views = [None if start in (10, 213) else memoryview(bytearray(size)) for start, size in here]
    hashers = [new_hasher("sha256"), new_hasher("sha256")]
    arrived: list[int] = []

    def segments() -> Iterator[Segment]:
        for (start, size), view in zip(here, views, strict=True):
            yield Segment(start, size, view, hashers[start >= 400], lambda start=start: arrived.append(start))  # type: ignore[misc]

    with Reading() as one:
        one.read(tmp_path / "file", segments())
    assert arrived == [start for start, _ in here]
    for (start, size), view in zip(here, views, strict=True):
        assert view is None or bytes(view) == data[start : start + size]
    expected = [bytes_digest(data[:263], "sha256"), bytes_digest(data[400:], "sha256")]
    assert [f"sha256:{hasher.hexdigest()}" for hasher in hashers] == expected


def test_a_file_can_be_begun_before_it_is_known_what_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    assert reading.begin(tmp_path / "file") == 1000
    monkeypatch.setattr(os, "posix_fadvise", fail)
    assert reading.begin(tmp_path / "file") == 1000, "a file system that cannot is no outage"
    with pytest.raises(FileNotFoundError):
        reading.begin(tmp_path / "none")


def test_a_file_that_ends_too_early_is_said(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(EOFError, match="short ends at 3, 10 bytes were expected"), Reading() as one:
        one.read(tmp_path / "short", [Segment(0, 10)])


class Broken:
    def update(self, data: Any, /) -> None:
        raise ValueError("no digest")


def test_a_digest_that_fails_ends_the_reading_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More windows than may wait: the reader must not wait for ever."""
    monkeypatch.setattr(reading, "WINDOW", 16)
    (tmp_path / "file").write_bytes(bytes(1000))
    with pytest.raises(ValueError, match="no digest"), Reading() as one:
        one.read(tmp_path / "file", [Segment(0, 1000, sink=Broken())])


def test_a_read_that_fails_names_the_file_and_the_next_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    with Reading() as one:
        for _ in range(20):
            with monkeypatch.context() as broken, pytest.raises(OSError, match=r"Input/output error: '.*file'"):
                broken.setattr(os, "preadv", fail)
                one.read(tmp_path / "file", [Segment(0, 10)])
        one.read(tmp_path / "file", [Segment(0, 10)])


def fail(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# --- regions ------------------------------------------------------------------------------------------------------


def test_rows_columns_and_other_layouts_are_read_right(tmp_path: Path) -> None:
    """Whole chunks go straight into the target; a strided target and a column go through memory of their own."""
    whole = torch.arange(24.0).view(4, 6)
    share_writer.save_share(tmp_path, 0, {"x": whole}, "crc32")
    straight, turned = torch.zeros(4, 6), torch.zeros(6, 4).t()
    for target in (straight, turned):
        load_shares(tmp_path, 1, {"x": target})
        assert torch.equal(target, whole)


# --- the index ----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    return save_steps(tmp_path / "root", steps=1)


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
        (lambda data: data["chunks"][1].update(start=data["chunks"][0]["start"] + 4), "begins within"),
        (lambda data: data["tensors"][data["chunks"][0]["key"]].update(dtype="load"), "is no type of a tensor"),
        (lambda data: data.update(version=3), "newer than this reader knows"),
        (lambda data: data.update(chunks=[7]), "index.json"),
    ],
)
def test_an_index_that_agrees_with_its_digest_may_still_not_lead_anywhere(
    saved: Saved, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    rewrite(saved.folder(1), 0, change, lambda data: None)
    with pytest.raises(Damaged) as caught:
        look(saved.folder(1))
    assert said in str(caught.value) and str(caught.value).startswith("rank-00000.d/index.json")


@pytest.mark.parametrize("batch", [1, 100, 4 << 20])
def test_what_differs_in_memory_is_named(saved: Saved, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's digests against a model that was loaded, and against one in which one value moved."""
    monkeypatch.setattr(live_digests, "_BATCH", batch)
    tracked = Tracked()
    own = objects()
    tracked.add("model", own["model"])
    tracked.add("optimizer", own["optimizer"])
    source = look(saved.folder(1))
    reader = source.reader()
    keys = source.keys(reader)
    reader.load({keys[f"model/{k}"]: v for k, v in own["model"].state_dict().items()})
    live = tracked.collect(1).shared
    assert compare(reader, keys, live).differing == []
    with torch.no_grad():
        own["model"][0].bias[3] += 1.0
    assert compare(reader, keys, live).differing == ["model/0.bias"]
    outcomes = {check.name: check for check in state_checks(source, tracked, Coordinator(), step=1, same_layout=True)}
    assert (outcomes["parameters"].outcome, outcomes["parameters"].why) == ("FAIL", "model/0.bias")
    assert compare(reader, keys, {"model/unknown": torch.zeros(1)}).elsewhere == ["model/unknown"]
