"""A sample of the lines that may be most of a log: steps and progress bars.

All of the first ones, then the first that begins in each block of bytes; the reader adds the last one of all. Blocks
are counted from the log's beginning, so that how it is cut into pieces makes no difference.
"""

from collections.abc import Iterable

from worker_hooks.signs.lines import LINE_BYTES, bounds

_ALL_OF = 1000
_BLOCK = 64 * 1024

Span = tuple[int, int]


class Sampler:
    """`spans` and `last` are asked for each piece of whole lines, in order."""

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._literals = tuple(literals)
        self._behind = 0  # bytes of the log before the present piece
        self._given = 0
        self._block = -1  # of the last line given

    def spans(self, data: bytes, returns: bool) -> list[Span]:
        spans = []
        next_of = {literal: data.find(literal) for literal in self._literals}
        place = _first(next_of)
        while place >= 0:
            start, end = bounds(data, place, returns)
            behind, block = max(end, place + 1), (self._behind + start) // _BLOCK
            if self._given >= _ALL_OF and block <= self._block:
                behind = max(behind, (self._block + 1) * _BLOCK - self._behind)
            elif place < start + LINE_BYTES:
                spans.append((start, min(end, start + LINE_BYTES)))
                self._given, self._block = self._given + 1, block
            for literal, found in next_of.items():
                if 0 <= found < behind:
                    next_of[literal] = data.find(literal, behind)
            place = _first(next_of)
        self._behind += len(data)
        return spans

    def last(self, data: bytes, returns: bool) -> Span | None:
        """The last line of the piece that holds one of the literals."""
        return max((span for literal in self._literals if (span := _last(data, literal, returns))), default=None)


def _first(places: dict[bytes, int]) -> int:
    return min((place for place in places.values() if place >= 0), default=-1)


def _last(data: bytes, literal: bytes, returns: bool) -> Span | None:
    place = data.rfind(literal)
    while place >= 0:
        start, end = bounds(data, place, returns)
        cut = min(end, start + LINE_BYTES)
        if data.find(literal, start, cut) >= 0:
            return start, cut
        place = data.rfind(literal, 0, start)
    return None
