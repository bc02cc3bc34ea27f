"""How far two tensors of one type and size are apart, from their bytes alone: no torch, no numpy, bounded memory.

Some ten million numbers a second. Numbers are read as this machine writes them, as the checkpoint's own reader does.
"""

import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import sub

from worker_hooks.cli.checkpoints_pieces import Pace
from worker_hooks.cli.checkpoints_stored import Stored, alike, stream

_STRETCH = 1 << 18
Numbers = Sequence[float]


def largest_difference(a: Stored, b: Stored, key: str, pace: Pace) -> float | None:
    """The largest absolute difference; NaN where exactly one of two numbers is NaN. For complex numbers it is that of
    the parts. None for a type that is not known here, or where the parts of the tensors do not correspond.

    Raises OSError, and ValueError where a file is shorter than its index says.
    """
    one, other = a.tensors[key], b.tensors[key]
    read = _READERS.get(one.dtype)
    if read is None or not (alike(one, other) or (one.in_order and other.in_order)):
        return None
    found = 0.0
    for x, y in zip(_even(stream(a, one.chunks, pace)), _even(stream(b, other.chunks, pace)), strict=True):
        if len(x) != len(y):
            raise ValueError(f"{key} has different lengths")
        here = _difference(read(x), read(y))
        if math.isnan(here):
            return math.nan
        found = max(found, here)
    return found


def _even(parts: Iterator[memoryview]) -> Iterator[bytes]:
    """The same bytes in stretches of one length, so that two streams that were cut differently go side by side."""
    kept = bytearray()
    for part in parts:
        for begin in range(0, len(part), _STRETCH):
            kept += part[begin : begin + _STRETCH]
            if len(kept) >= _STRETCH:
                yield bytes(kept[:_STRETCH])
                del kept[:_STRETCH]
    if kept:
        yield bytes(kept)


def _difference(xs: Numbers, ys: Numbers) -> float:
    """A NaN among the differences shows in their sum; only then is it asked where it came from."""
    apart = list(map(abs, map(sub, xs, ys)))
    if not math.isnan(sum(apart)):
        return max(apart, default=0.0)
    return _with_nan(xs, ys)


def _with_nan(xs: Numbers, ys: Numbers) -> float:
    found = 0.0
    for x, y in zip(xs, ys, strict=True):
        if x == y or (x != x and y != y):
            continue
        if x != x or y != y:
            return math.nan
        found = max(found, abs(x - y))
    return found


def _array(code: str) -> Callable[[bytes], Numbers]:
    def read(data: bytes) -> Numbers:
        numbers = array(code)
        numbers.frombytes(data)
        return numbers

    return read


def _halves(data: bytes) -> Numbers:
    return struct.unpack(f"={len(data) // 2}e", data)


def _bfloats(data: bytes) -> Numbers:
    """The upper half of a float."""
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return memoryview(wide).cast("f")


_READERS: dict[str, Callable[[bytes], Numbers]] = {
    "float64": _array("d"),
    "float32": _array("f"),
    "float16": _halves,
    "bfloat16": _bfloats,
    "complex128": _array("d"),
    "complex64": _array("f"),
    "int64": _array("q"),
    "int32": _array("i"),
    "int16": _array("h"),
    "int8": _array("b"),
    "uint8": _array("B"),
    "bool": _array("B"),
}
