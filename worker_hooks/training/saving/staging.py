"""Host memory that a save is copied into: the image of the files to be written, byte for byte.

One buffer, allocated and touched before the first save is due and used again by every save. Each chunk begins on a
64-byte boundary and each file on a block, so that writing is one sequential write of the buffer.

First touch costs 0.3 to 1.9 s a GiB (2 cores), so it is paid beforehand. A second buffer would be of no use: a save
that falls due while one is in flight is skipped.
"""

import mmap
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker_hooks.training.files.share_files import ALIGN, BLOCK
from worker_hooks.training.saving.copying import copy, spare_core
from worker_hooks.training.saving.progress import Mark, Progress
from worker_hooks.training.saving.shares import Chunk, Share

_HUGE = 2 << 20
# So much is copied before the writer is told: a fraction of what a disk takes in the time of the whole copy.
_GROUP = 8 << 20


@dataclass(frozen=True)
class Placed:
    """Chunk number `index` of the share lies at `start` of its file."""

    index: int
    start: int
    bytes: int


@dataclass(frozen=True)
class Image:
    """One file: where it begins in the buffer, its length, and its chunks in order."""

    at: int
    bytes: int
    placed: tuple[Placed, ...]


def lay_out(chunks: Sequence[Chunk], apart: Collection[int] = ()) -> tuple[Image, ...]:
    """Two images: all chunks but those numbered in `apart`, and those."""
    first = _image(0, [(index, chunk) for index, chunk in enumerate(chunks) if index not in apart])
    return first, _image(_up(first.bytes, BLOCK), [(index, chunks[index]) for index in sorted(apart)])


def room(images: Sequence[Image]) -> int:
    """How large a buffer the images need, the last block of each whole."""
    return max(image.at + _up(image.bytes, BLOCK) for image in images)


def _image(at: int, chunks: list[tuple[int, Chunk]]) -> Image:
    placed, end = [], 0
    for index, chunk in chunks:
        placed.append(Placed(index, end, chunk.bytes))
        end = _up(end + chunk.bytes, ALIGN)
    return Image(at, end, tuple(placed))


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class Buffer:
    """Anonymous memory on huge pages where the system gives them, page-locked for a CUDA device (that part was not run
    on hardware). Released with the last tensor over it."""

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        self.size = _up(max(size, 1), BLOCK)
        self._memory = mmap.mmap(-1, _up(self.size, _HUGE))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a kernel without them
                pass
        self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8, count=self.size)
        self.bytes.zero_()  # the page faults of the first touch, paid here and in no save
        self._pinned = pinned and _register(self.bytes)

    def window(self, start: int, end: int) -> memoryview:
        return memoryview(self._memory)[start:end]

    def view(self, start: int, chunk: Chunk) -> torch.Tensor:
        """A chunk of the image as the tensor it is."""
        if chunk.bytes == 0:
            return torch.empty(chunk.sizes, dtype=chunk.dtype)
        count = chunk.bytes // chunk.dtype.itemsize
        return torch.frombuffer(self._memory, dtype=chunk.dtype, count=count, offset=start).view(chunk.sizes)

    def close(self) -> None:
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
            self._pinned = False


def _register(memory: torch.Tensor) -> bool:
    """Page-locked memory that torch knows nothing of still makes its copies asynchronous."""
    return int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0


class Stage:
    """A share in a buffer that holds it whole. It is written from the front while it is still being filled."""

    def __init__(self, share: Share, images: tuple[Image, ...], buffer: Buffer) -> None:
        self.share = share
        self.images = images
        self.buffer = buffer
        self.filled_at = 0.0
        self._places = {placed.index: image.at + placed.start for image in images for placed in image.placed}
        self.tensors = [buffer.view(self._places[index], chunk) for index, chunk in enumerate(share.chunks)]
        self._stream: Any = None
        self._progress = Progress()

    def begin(self) -> None:
        """Another save begins, and no writer knows of it yet: nothing is filled."""
        self._progress = Progress()

    def fill(self, sources: list[torch.Tensor]) -> None:
        """Copy the share; `filled_at` is when (monotonic). From CPU tensors it is complete when this returns. From a
        CUDA device the copy runs on a stream of its own, the device's later work waits for it, this thread does not
        (not run on hardware). Once for each `begin`."""
        device = next((tensor.device for tensor in sources if tensor.is_cuda), None)
        try:
            with torch.no_grad():
                if device is None:
                    self._copy(sources, lambda: None)
                else:
                    self._fill_from(device, sources)
        except BaseException as error:
            self._progress.complete(error)
            raise
        self.filled_at = time.monotonic()
        self._progress.complete()

    def _copy(self, sources: list[torch.Tensor], mark: Callable[[], Mark | None]) -> None:
        """In the order of the files, a group at a time; `mark()` gives what the writer of a group has to wait for."""
        views: list[torch.Tensor] = []
        group: list[torch.Tensor] = []
        place = begun = 0
        for index, place in self._places.items():
            for view, source in _parts(self.tensors[index], sources[index]):
                views.append(view)
                group.append(source)
                place += view.nbytes
                if place - begun >= _GROUP:
                    copy(views, group)
                    self._progress.advance(place, mark())
                    views, group, begun = [], [], place
        if views:
            copy(views, group)
            self._progress.advance(place, mark())

    def _fill_from(self, device: torch.device, sources: list[torch.Tensor]) -> None:
        self._stream = self._stream or torch.cuda.Stream(device)
        now = torch.cuda.current_stream(device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            self._copy(sources, self._stream.record_event)
            copied = self._stream.record_event()
        for tensor in sources:
            if tensor.is_cuda:
                tensor.record_stream(self._stream)
        now.wait_event(copied)

    def lead(self) -> None:
        """Wait until a writer does not slow the copy any more. Not for the training thread."""
        if not spare_core():
            self._progress.over()

    def windows(self, image: Image) -> Iterator[memoryview]:
        """The image with the room up to the end of its last block, in stretches as they are filled. Not for the
        training thread. Raises what went wrong with the copy."""
        at, end = image.at, image.at + _up(image.bytes, BLOCK)
        while at < end:
            filled = self._progress.reach(min(at + BLOCK, image.at + image.bytes))
            until = end if filled is None or filled >= image.at + image.bytes else filled // BLOCK * BLOCK
            yield self.buffer.window(at, until)
            at = until

    def complete(self) -> None:
        """Wait until all of it is filled. Not for the training thread. Raises what went wrong with the copy."""
        self._progress.reach(self.buffer.size)


class PieceStage:
    """A share that is larger than the buffer: copied window by window while it is written, and training waits.

    A tensor that is not contiguous is copied once more on its own device.
    """

    def __init__(self, share: Share, images: tuple[Image, ...], buffer: Buffer, tensors: list[torch.Tensor]) -> None:
        self.share = share
        self.images = images
        self._buffer = buffer
        self.tensors = tensors

    def lead(self) -> None:
        """There is no copy to be ahead."""

    def complete(self) -> None:
        """Every copy here is complete when it returns."""

    def windows(self, image: Image) -> Iterator[memoryview]:
        size = self._buffer.size
        for begin in range(0, image.bytes, size):
            end = min(begin + size, image.bytes)
            for placed in image.placed:
                self._copy(placed, max(begin, placed.start), min(end, placed.start + placed.bytes), begin)
            yield self._buffer.window(0, _up(end - begin, BLOCK))

    def _copy(self, placed: Placed, start: int, end: int, begin: int) -> None:
        """The part of a chunk that lies between two places of the file."""
        if start < end:
            flat = self.tensors[placed.index].contiguous().reshape(-1).view(torch.uint8)
            self._buffer.bytes[start - begin : end - begin].copy_(flat[start - placed.start : end - placed.start])


def _parts(view: torch.Tensor, source: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A large tensor in parts, so that the writer need not wait for all of it."""
    if view.nbytes <= _GROUP or not source.is_contiguous():
        yield view, source
        return
    count = _GROUP // view.dtype.itemsize
    yield from zip(view.view(-1).split(count), source.view(-1).split(count), strict=True)
