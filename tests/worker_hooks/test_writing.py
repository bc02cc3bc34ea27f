"""Writing past the page cache or through it, digests on the way, and disks that fail."""

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.training.files import digests, writing
from worker_hooks.training.files.share_files import BLOCK
from worker_hooks.training.saving.chunk_digests import ImageDigests
from worker_hooks.training.saving.shares import plan_share
from worker_hooks.training.saving.staging import Buffer, Stage, lay_out, room

pytestmark = pytest.mark.torch


class Ear:
    def __init__(self) -> None:
        self.heard = b""

    def feed(self, data: memoryview) -> None:
        self.heard += bytes(data)


def block(size: int) -> memoryview:
    memory = memoryview(mmap.mmap(-1, -(-max(size, 1) // BLOCK) * BLOCK))
    memory[:size] = os.urandom(size)
    return memory


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def direct(request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    if request.param and not writing.takes_direct(tmp_path):
        pytest.skip("no O_DIRECT on this file system")
    return bool(request.param)


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1, writing.PIECE + 3 * BLOCK + 17])
def test_every_byte_is_written_and_heard_and_the_padding_is_cut_off(tmp_path: Path, direct: bool, size: int) -> None:
    data, ear = block(size), Ear()
    writing.write_file(tmp_path / "file", [data], size, ear, direct=direct)
    assert (tmp_path / "file").read_bytes() == bytes(data[:size]) == ear.heard


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path, direct: bool) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        writing.write_file(tmp_path / "file", [block(10)], 10, Ear(), direct=direct)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_write_that_takes_a_part_is_continued(tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "write", lambda descriptor, data: os.write(descriptor, data[:BLOCK]))
    data = block(5 * BLOCK + 100)
    writing.write_file(tmp_path / "file", [data], 5 * BLOCK + 100, Ear(), direct=direct)
    assert (tmp_path / "file").read_bytes() == bytes(data[: 5 * BLOCK + 100])


@pytest.mark.parametrize("kind", ["full", "broken", "quota", "short", "nothing"])
def test_a_failing_disk_is_an_error_with_the_files_name(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, data: memoryview) -> int:
        if kind == "short":
            return 100
        if kind == "nothing":
            return 0
        number = {"full": errno.ENOSPC, "broken": errno.EIO, "quota": errno.EDQUOT}[kind]
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing, "write", write)
    with pytest.raises(OSError, match=r"tensors\.bin"):
        writing.write_file(tmp_path / "tensors.bin", [block(BLOCK)], BLOCK, Ear(), direct=True)


# --- the probe ----------------------------------------------------------------------------------------------------


def failing_open(number: int) -> Any:
    real = os.open

    def opened(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *rest)

    return opened


def test_a_file_system_without_o_direct_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_known", {})
    monkeypatch.setattr(os, "open", failing_open(errno.EINVAL))
    assert not writing.takes_direct(tmp_path)
    monkeypatch.setattr(os, "open", failing_open(errno.EIO))
    assert not writing.takes_direct(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_says_nothing_about_o_direct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(writing, "_known", {})
    with monkeypatch.context() as failing:
        failing.setattr(os, "open", failing_open(number))
        with pytest.raises(OSError) as caught:
            writing.takes_direct(tmp_path)
    assert caught.value.errno == number
    assert writing._known == {}


# --- digests on the way -------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=6),
    st.lists(st.integers(1, 700), min_size=1, max_size=12),
)
def test_digests_are_the_same_however_the_bytes_come(sizes: list[int], cuts: list[int]) -> None:
    tensors = {str(i): torch.randn(size) for i, size in enumerate(sizes)}
    share = plan_share(tensors)
    images = lay_out(share.chunks)
    stage = Stage(share, images, Buffer(room(images)))
    stage.fill(share.tensors(tensors))
    data = memoryview(b"".join(stage.windows(images[0])))[: images[0].bytes]
    found = ImageDigests("xxh3_128", share.chunks, images[0].placed)
    at = 0
    for cut in [*cuts, len(data)]:
        found.feed(data[at : at + cut])
        at += cut
    found.finish()
    for index, key in enumerate(share.keys):
        hasher = digests.new_hasher("xxh3_128")
        hasher.update(digests.raw_bytes(tensors[key]))
        assert found.chunks[index] == f"xxh3_128:{hasher.hexdigest()}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_found_wherever_it_is(dtype: torch.dtype, value: float) -> None:
    for place in (0, 1, 69_999):
        tensors = {"good": torch.ones(10), "bad": torch.ones(70_000).to(dtype), "last": torch.ones(3)}
        tensors["bad"][place] = value
        assert not finite(tensors, {"good", "bad", "last"})
        assert finite(tensors, {"good", "last"}), "only what is asked about"
        assert finite(tensors | {"bad": torch.ones(5)}, {"good", "bad", "last"})


def test_large_numbers_are_finite() -> None:
    """Their norm overflows; they do not."""
    assert finite({"large": torch.full((100_000,), 3e38), "half": torch.full((9,), 6e4).half()}, {"large", "half"})


def test_whole_numbers_and_empty_tensors_are_finite() -> None:
    tensors = {"ids": torch.arange(5), "flags": torch.ones(3, dtype=torch.bool), "empty": torch.empty(0)}
    assert finite(tensors, set(tensors))


def finite(tensors: dict[str, torch.Tensor], asked: set[str]) -> bool:
    share = plan_share(tensors)
    images = lay_out(share.chunks)
    stage = Stage(share, images, Buffer(room(images)))
    stage.fill(share.tensors(tensors))
    checked = [index for index, key in enumerate(share.keys) if key in asked]
    found = ImageDigests("crc32", share.chunks, images[0].placed, checked)
    for window in stage.windows(images[0]):
        found.feed(window[: images[0].bytes])
    return found.finite
