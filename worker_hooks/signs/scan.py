"""Finds the lines of a log that hold one of a set of literals, in big pieces, at the speed of a byte search.

A search through every byte for each of fifty literals would be slow. Most of a log is the same lines with other
numbers, so a line is looked at without its digits: what was found to hold no literal is not searched again. New lines
are searched for a few fragments that literals share; a line with a fragment is then asked for the literals.
"""

import re
from collections.abc import Iterable

from worker_hooks.signs.lines import LINE_BYTES, bounds

# Shared by several literals, in the order in which they are preferred; a literal without one is looked for by its
# rarest piece. Pieces are short because CPython looks for up to five bytes by a plain loop with skips, which on common
# text is twice as fast as what it does for longer ones (docs/campaigns/log-scan.md).
FRAGMENTS = (
    *(b"rror", b"xcept", b"ignal", b"SIG", b"code", b"ining", b"failu"),
    *(b"L WAR", b"CCL w"),  # not what each of NCCL's own lines holds
)
_PIECE = 5
_BLOCK = 64 * 1024  # with a new or interesting line in it, all of its lines are walked through
_TEMPLATE_BYTES = 1024
_TEMPLATES = 8192
# What logs are made of, the most frequent first.
_FREQUENT = b" e0taionsr1l2d35c4u6:8m79p.h-/_g,f[]yb|(v)w=ETS"


class Scanner:
    def __init__(self, triggers: Iterable[bytes], fragments: Iterable[bytes] = FRAGMENTS) -> None:
        wanted = sorted(set(triggers), key=len)
        # A literal that holds another one finds nothing that the other does not.
        wanted = [one for place, one in enumerate(wanted) if not any(short in one for short in wanted[:place])]
        groups: dict[bytes, list[bytes]] = {}
        for trigger in wanted:
            groups.setdefault(next((one for one in fragments if one in trigger), _rarest(trigger)), []).append(trigger)
        self._passing = bytes(set(b"0123456789").difference(*wanted))
        self._cold: set[bytes] = set()  # lines without a literal, by what is left of them without their digits
        self.searches = tuple(
            (fragment, re.compile(b"|".join(map(re.escape, group)))) for fragment, group in groups.items()
        )

    def spans(self, data: bytes, returns: bool) -> dict[int, int]:
        """Start and end of each line with a literal in its first LINE_BYTES; the end is cut."""
        found: dict[int, int] = {}
        begin = 0
        while begin < len(data):
            end = data.rfind(b"\n", begin, begin + _BLOCK) + 1
            if end <= begin:
                end = data.find(b"\n", begin) + 1 or len(data)
            for start, stop in self._hot(data[begin:end], begin):
                found.update(self._exact(data, start, stop, returns))
            begin = end
        return found

    def _hot(self, block: bytes, begin: int) -> list[tuple[int, int]]:
        """The lines of a block that may hold a literal."""
        templates = block.translate(None, self._passing).split(b"\n")
        hot = self._learn(set(templates) - self._cold)
        spans, start = [], begin
        if hot:
            for template, line in zip(templates, block.split(b"\n"), strict=True):
                if template in hot:
                    spans.append((start, start + len(line)))
                start += len(line) + 1
        return spans

    def _learn(self, new: set[bytes]) -> set[bytes]:
        """Those of `new` that hold a literal, or are too long to remember; the others are remembered."""
        hot = {template for template in new if len(template) > _TEMPLATE_BYTES}
        text = b"\n".join(new - hot)
        for fragment, wanted in self.searches:
            place = text.find(fragment)
            while place >= 0:
                start, end = bounds(text, place, False)
                if wanted.search(text, start, end):
                    hot.add(text[start:end])
                place = text.find(fragment, end)
        if len(self._cold) > _TEMPLATES:
            self._cold.clear()
        self._cold |= new - hot
        return hot

    def _exact(self, data: bytes, begin: int, stop: int, returns: bool) -> dict[int, int]:
        found: dict[int, int] = {}
        for fragment, wanted in self.searches:
            place = data.find(fragment, begin, stop)
            while place >= 0:
                start, end = bounds(data, place, returns)
                if start not in found:
                    cut = min(end, start + LINE_BYTES)
                    if wanted.search(data, start, cut):
                        found[start] = cut
                place = data.find(fragment, max(end, place + 1), stop)
        return found


def _rarest(trigger: bytes) -> bytes:
    pieces = [trigger[start : start + _PIECE] for start in range(max(1, len(trigger) - _PIECE + 1))]
    return min(pieces, key=lambda piece: sum(_frequency(byte) for byte in piece))


def _frequency(byte: int) -> float:
    place = _FREQUENT.find(byte)
    return 0.0 if place < 0 else 1.0 / (place + 4)
