"""Finds the lines of a log that hold one of a set of literals, in big pieces, at the speed of a byte search.

A search through every byte for each of a hundred literals would be slow, so the pieces are searched for a few fragments
that many literals share and that ordinary lines seldom hold; a line with a fragment is then asked for the literals.
"""

import re
from collections.abc import Iterable

from worker_hooks.signs.lines import LINE_BYTES, bounds

# In the order in which they are preferred. Measured (docs/campaigns/log-scan.md): each costs one search, each line that
# holds one without holding a literal costs a microsecond or two.
FRAGMENTS = (b"rror", b"xcept", b"exit", b"ignal", b"ailed")


class Scanner:
    def __init__(self, triggers: Iterable[bytes], fragments: Iterable[bytes] = FRAGMENTS) -> None:
        wanted = sorted(set(triggers), key=len)
        # A literal that holds another one finds nothing that the other does not.
        wanted = [one for place, one in enumerate(wanted) if not any(short in one for short in wanted[:place])]
        groups: dict[bytes, list[bytes]] = {}
        for trigger in wanted:
            groups.setdefault(next((one for one in fragments if one in trigger), trigger), []).append(trigger)
        self.searches = tuple(
            (fragment, re.compile(b"|".join(map(re.escape, group)))) for fragment, group in groups.items()
        )

    def spans(self, data: bytes, returns: bool) -> dict[int, int]:
        """Start and end of each line with a literal in its first LINE_BYTES; the end is cut."""
        found: dict[int, int] = {}
        for fragment, wanted in self.searches:
            place = data.find(fragment)
            while place >= 0:
                start, end = bounds(data, place, returns)
                if start not in found:
                    cut = min(end, start + LINE_BYTES)
                    if wanted.search(data, start, cut):
                        found[start] = cut
                place = data.find(fragment, max(end, place + 1))
        return found
