"""Finds the lines of a log that hold one of a set of literals, in big pieces, at the speed of a byte search.

A search through every byte for each of a hundred literals would be slow, so the pieces are searched for a few fragments
that many literals share and that ordinary lines seldom hold; a line with a fragment is then asked for the literals.
"""

import re
from collections.abc import Iterable

# A longer line is cut: what stands behind is not looked at.
LINE_BYTES = 16 * 1024
# Of frequent literals only the first and last line of each block are looked at, unless the data are no more than one.
_BLOCK = 64 * 1024

# In the order in which they are preferred. Measured (docs/campaigns/log-scan.md): each costs one search, each line that
# holds one without holding a literal costs a microsecond or two.
FRAGMENTS = (b"rror", b"xcept", b"exit", b"ignal", b"ailed", b"atchdog", b"imeout", b"timed out", b"NCCL WARN", b"onnect",
             b"emory", b"SIG", b"killed", b"Kill", b"slurm", b"srun", b"CANCELLED", b"aught", b"ssert", b"orrupt", b"aN", b"nan")  # fmt: skip


class Scanner:
    """Lines end with LF, CR (a progress bar's rewritten line is a line) or both."""

    def __init__(
        self, triggers: Iterable[bytes], frequent: Iterable[bytes] = (), fragments: Iterable[bytes] = FRAGMENTS
    ) -> None:
        wanted = sorted(set(triggers), key=len)
        # A literal that holds another one finds nothing that the other does not.
        wanted = [one for place, one in enumerate(wanted) if not any(short in one for short in wanted[:place])]
        groups: dict[bytes, list[bytes]] = {}
        for trigger in wanted:
            groups.setdefault(next((one for one in fragments if one in trigger), trigger), []).append(trigger)
        self._searches = tuple(_search(fragment, group) for fragment, group in groups.items())
        self._frequent = tuple(frequent)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Start and end of each line with a literal in its first LINE_BYTES, in order; the end is cut."""
        returns = b"\r" in data
        found: dict[int, int] = {}
        for fragment, wanted in self._searches:
            place = data.find(fragment)
            while place >= 0:
                start, end = _bounds(data, place, returns)
                if start not in found:
                    cut = end if end - start <= LINE_BYTES else start + LINE_BYTES
                    if wanted.search(data, start, cut):
                        found[start] = cut
                place = data.find(fragment, end)
        for literal in self._frequent:
            found.update(_sampled(data, literal, returns))
        return sorted(found.items())


def _search(fragment: bytes, triggers: list[bytes]) -> tuple[bytes, re.Pattern[bytes]]:
    return fragment, re.compile(b"|".join(map(re.escape, triggers)))


def _bounds(data: bytes, place: int, returns: bool) -> tuple[int, int]:
    start = data.rfind(b"\n", 0, place) + 1
    end = data.find(b"\n", place)
    if end < 0:
        end = len(data)
    if returns:
        start = max(start, data.rfind(b"\r", start, place) + 1)
        inner = data.find(b"\r", place, end)
        if inner >= 0:
            end = inner
    return start, end


def _sampled(data: bytes, needle: bytes, returns: bool) -> Iterable[tuple[int, int]]:
    every = len(data) <= _BLOCK
    for block in range(0, len(data), _BLOCK):
        place, stop = data.find(needle, block, block + _BLOCK), block + _BLOCK
        while place >= 0:
            start, end = _bounds(data, place, returns)
            if place + len(needle) <= start + LINE_BYTES:
                yield start, min(end, start + LINE_BYTES)
            behind = max(end, place + 1)
            place = data.find(needle, behind, stop) if every else data.rfind(needle, behind, stop)
            stop = stop if every else behind  # after the last one there is none
