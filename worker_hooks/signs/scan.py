"""Finds the lines of a log that hold one of a set of literals, in big pieces, at the speed of a byte search."""

from collections.abc import Iterable

# A longer line is cut: what stands behind is not looked at.
LINE_BYTES = 16 * 1024


class Scanner:
    """Lines end with LF, CR (a progress bar's rewritten line is a line) or both."""

    def __init__(self, triggers: Iterable[bytes]) -> None:
        wanted = sorted(set(triggers), key=len)
        # A literal that holds another one finds nothing that the other does not.
        self._needles = tuple(
            needle for place, needle in enumerate(wanted) if not any(short in needle for short in wanted[:place])
        )

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Start and end of each line with a trigger in its first LINE_BYTES, in order; the end is cut."""
        returns = b"\r" in data
        found: set[tuple[int, int]] = set()
        for needle in self._needles:
            place = data.find(needle)
            while place >= 0:
                start, end = _bounds(data, place, returns)
                if place + len(needle) <= start + LINE_BYTES:
                    found.add((start, min(end, start + LINE_BYTES)))
                place = data.find(needle, max(end, place + 1))
        return sorted(found)


def _bounds(data: bytes, place: int, returns: bool) -> tuple[int, int]:
    start = data.rfind(b"\n", 0, place) + 1
    end = data.find(b"\n", place)
    end = len(data) if end < 0 else end
    if returns:
        start = max(start, data.rfind(b"\r", start, place) + 1)
        inner = data.find(b"\r", place, end)
        end = end if inner < 0 else inner
    return start, end
