"""Digests of a file and of the chunks in it, and whether its numbers are numbers: one pass, while it is written."""

import math
from collections.abc import Callable, Collection, Sequence

import torch

from worker_hooks.digests import Hasher
from worker_hooks.training.files.digests import new_hasher
from worker_hooks.training.saving.shares import Chunk
from worker_hooks.training.saving.staging import Placed

# A stretch that stays in the cache between the two digests, and is long enough that a busy training thread is seldom
# asked for the GIL.
_STRETCH = 4 << 20
# What torch looks through on this thread alone: more at a time would take the training's cores.
_NUMBERS = 32768


class ImageDigests:
    """A watcher of one image. `finite` covers the chunks numbered in `checked`. `begin()` waits until it may begin:
    while training's state is being copied, memory is the copy's."""

    def __init__(
        self,
        algorithm: str,
        chunks: Sequence[Chunk],
        placed: Sequence[Placed],
        checked: Collection[int] = (),
        *,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._begin = begin
        self.finite = True
        self.chunks: dict[int, str] = {}
        self._algorithm = algorithm
        self._file = new_hasher(algorithm)
        self._types = {item.index: chunks[item.index].dtype for item in placed if item.index in checked}
        self._placed = placed
        self._next = 0
        self._at = 0
        self._open: Hasher = new_hasher(algorithm)

    @property
    def file(self) -> str:
        """Of all that was fed."""
        return f"{self._algorithm}:{self._file.hexdigest()}"

    def feed(self, data: memoryview) -> None:
        self._begin()
        for begin in range(0, len(data), _STRETCH):
            stretch = data[begin : begin + _STRETCH]
            self._file.update(stretch)
            self._feed_chunks(stretch)
            self._at += len(stretch)

    def finish(self) -> None:
        """Chunks without bytes at the end of the image have a digest too."""
        while self._next < len(self._placed):
            self._close_chunk()

    def _feed_chunks(self, stretch: memoryview) -> None:
        """Every chunk that has bytes in this stretch of the file."""
        end = self._at + len(stretch)
        while self._next < len(self._placed):
            item = self._placed[self._next]
            if item.start >= end:
                return
            first, last = max(item.start, self._at), min(item.start + item.bytes, end)
            part = stretch[first - self._at : last - self._at]
            self._open.update(part)
            if self.finite and item.index in self._types:
                self.finite = _finite(part, self._types[item.index])
            if item.start + item.bytes > end:
                return
            self._close_chunk()

    def _close_chunk(self) -> None:
        self.chunks[self._placed[self._next].index] = f"{self._algorithm}:{self._open.hexdigest()}"
        self._open = new_hasher(self._algorithm)
        self._next += 1


def _finite(part: memoryview, dtype: torch.dtype) -> bool:
    """False if any number in these bytes is NaN or infinite. `part` holds whole numbers: chunks are aligned."""
    if not len(part) or not (dtype.is_floating_point or dtype.is_complex):
        return True
    numbers = torch.frombuffer(part, dtype=dtype)
    if dtype.is_complex:
        numbers = torch.view_as_real(numbers).reshape(-1)
    if dtype.itemsize == 1:
        numbers = numbers.to(torch.float32)  # eight-bit floats know neither norm nor minimum
    stretches = numbers.split(_NUMBERS)
    # One call for all stretches. A norm is finite only where all numbers are; large ones may make it overflow.
    norms = torch.stack(torch._foreach_norm(stretches, 2))
    return bool(norms.isfinite().all()) or all(_stretch_finite(stretch) for stretch in stretches)


def _stretch_finite(numbers: torch.Tensor) -> bool:
    low, high = numbers.aminmax()
    return math.isfinite(low.item()) and math.isfinite(high.item())
