"""The copy into host memory is the same with one thread and with several; its writer waits where it has no core."""

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from worker_hooks.training.saving import copying
from worker_hooks.training.saving.copying import copy, spare_core
from worker_hooks.training.saving.progress import Progress

pytestmark = pytest.mark.torch

PIECE = copying._PIECE


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 17])
def test_every_byte_and_no_more_is_copied(size: int, threads: int) -> None:
    source = torch.randint(256, (size,), dtype=torch.uint8)
    memory = torch.zeros(size + 128, dtype=torch.uint8)
    copy([memory[64 : 64 + size]], [source])
    assert torch.equal(memory[64 : 64 + size], source)
    assert not memory[:64].any()
    assert not memory[64 + size :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_strided_sources_of_every_kind(dtype: torch.dtype, threads: int) -> None:
    sources = [torch.randn(300, 500).to(dtype).t(), torch.randn(7, 3, 2).to(dtype)[:, 1], torch.randn(()).to(dtype)]
    targets = [torch.empty(source.shape, dtype=dtype) for source in sources]
    copy(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target.view(-1).view(torch.uint8), source.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "spare"),
    [
        (2, None, 2, True),
        (1, None, 1, False),
        (2, "2", 1, False),
        (3, "2", 1, True),
        (4, "2", 2, True),
        (4, "1", 4, False),
        (96, "8", 12, False),
        (96, "8", 8, True),
        (2, "many", 2, True),
    ],
)
def test_a_core_to_spare(
    cores: int, ranks: str | None, threads: int, spare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert spare_core({} if ranks is None else {"LOCAL_WORLD_SIZE": ranks}) is spare


def test_the_writer_goes_on_while_another_waits_for_the_whole() -> None:
    """As the digests do, which begin when all is copied."""
    progress = Progress()
    writer = threading.Thread(target=progress.reach, args=(10,), daemon=True)
    digests = threading.Thread(target=progress.reach, args=(1 << 30,), daemon=True)
    for waiter in (writer, digests):
        waiter.start()
        waiter.join(0.05)
    progress.advance(20, None)
    writer.join(10)
    assert not writer.is_alive()
    assert digests.is_alive()
    progress.complete()


@pytest.mark.parametrize("error", [None, RuntimeError("no memory")])
def test_a_writer_without_a_core_waits_for_the_end_of_the_copy(error: Exception | None) -> None:
    progress = Progress()
    waiter = threading.Thread(target=progress.over, daemon=True)
    waiter.start()
    progress.advance(1 << 30, None)
    waiter.join(0.05)
    assert waiter.is_alive()
    progress.complete(error)
    waiter.join(10)
    assert not waiter.is_alive()
