"""A burst is one event: like signs within a window become one, with a count.

The first of them comes at once (or, where the whole log is read before anybody looks, carries all of them); what
followed comes as one sign when the window is over. A burst that goes on gets longer and longer windows, and there is a
bound on how many kinds are told apart, so that a flood of any sort gives a handful of signs and takes a little memory.
"""

import re
from dataclasses import dataclass, replace

from worker_hooks.signs.sign import Sign

WINDOW_S = 60.0
_LONGEST_WINDOW_S = 3600.0
_KINDS = 8192
_KINDS_OF_ONE = 64  # of one family on one node and rank

# Attributes that differ between the lines of one burst.
_PASSING = frozenset({"pid", "uid", "message", "ran_ms", "seconds", "cpu", "remaining_s", "percent"})
# Families that are one stream whatever they carry, and families whose texts are details of one event.
_STREAMS = frozenset({"progress"})
_TEXT_IS_DETAIL = frozenset({"xid", "sxid", "pcie", "gpu"})
_NUMBER = re.compile(r"(?:0x[0-9a-fA-F]+|\d)[\d.]*")
_SHAPE_CHARS = 160

_Key = tuple[object, ...]


@dataclass
class _Window:
    """`place`: index among the results where the whole log is read first. `pending`: what followed the first sign."""

    key: _Key
    group: _Key
    started_at: float | None  # by the log's clock
    arrived_at: float | None  # by the reader's
    length_s: float
    place: int | None = None
    pending: Sign | None = None

    def over(self, at: float | None, arrival: float | None) -> bool:
        return _passed(self.started_at, at, self.length_s) or _passed(self.arrived_at, arrival, self.length_s)


class Bursts:
    """`whole`: nothing is given before `close`, and each burst is exactly one sign."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole
        self._windows: dict[_Key, _Window] = {}
        self._latest: dict[_Key, _Key] = {}  # the window that a line without a location joins
        self._kinds: dict[_Key, int] = {}
        self._results: list[Sign] = []

    def add(self, sign: Sign, arrival: float | None) -> list[Sign]:
        if self._whole and sign.family in _STREAMS:  # a sample of them: each one counts
            self._results.append(sign)
            return []
        group = (sign.family, sign.node, sign.rank)
        key = self._key(sign, group)
        window = self._windows.get(key)
        if window is not None and not window.over(sign.at, arrival):
            self._join(window, sign)
            return []
        given = [] if window is None or window.pending is None else [window.pending]
        self._open(key, group, sign, arrival, window)
        return [] if self._whole else [*given, sign]

    def tick(self, arrival: float | None) -> list[Sign]:
        """What followed in the windows that are over by the reader's clock."""
        if arrival is None or self._whole:
            return []
        over = [window for window in self._windows.values() if window.over(None, arrival)]
        for window in over:
            del self._windows[window.key]
            self._kinds[window.group] -= 1
        if over:
            self._latest = {base: key for base, key in self._latest.items() if key in self._windows}
            self._kinds = {group: count for group, count in self._kinds.items() if count}
        return [window.pending for window in over if window.pending is not None]

    def close(self) -> list[Sign]:
        pending = [window.pending for window in self._windows.values() if window.pending is not None]
        results, self._results = [*self._results, *pending], []
        self._windows, self._latest, self._kinds = {}, {}, {}
        return results

    def _open(self, key: _Key, group: _Key, sign: Sign, arrival: float | None, last: _Window | None) -> None:
        if last is None:
            self._kinds[group] = self._kinds.get(group, 0) + 1
        length = WINDOW_S
        if last is not None and (last.pending is not None or last.place is not None):
            length = min(_LONGEST_WINDOW_S, last.length_s * 2)
        place = len(self._results) if self._whole else None
        self._windows[key] = _Window(key, group if last is None else last.group, sign.at, arrival, length, place)
        if self._whole:
            self._results.append(sign)

    def _join(self, window: _Window, sign: Sign) -> None:
        if window.place is not None:
            self._results[window.place] = _joined(self._results[window.place], sign)
        else:
            window.pending = sign if window.pending is None else _joined(window.pending, sign)

    def _key(self, sign: Sign, group: _Key) -> _Key:
        base = (sign.code, sign.node, sign.rank, *_telling(sign))
        location = sign.attrs.get("location")
        key: _Key = (*base, location)
        if location is None:  # it may stand in any line of a burst: the others join
            key = self._latest.get(base, key)
        elif key not in self._windows and (*base, None) in self._windows:
            self._rename((*base, None), key)
        if key not in self._windows and not self._room(group):
            key = group if len(self._windows) < 2 * _KINDS else (sign.family,)
        else:
            self._latest[base] = key
        return key

    def _rename(self, old: _Key, new: _Key) -> None:
        window = self._windows.pop(old)
        window.key = new
        self._windows[new] = window

    def _room(self, group: _Key) -> bool:
        return len(self._windows) < _KINDS and self._kinds.get(group, 0) < _KINDS_OF_ONE


def _passed(start: float | None, now: float | None, length_s: float) -> bool:
    return start is not None and now is not None and now - start > length_s


def _telling(sign: Sign) -> tuple[object, ...]:
    """The attributes that make it another event."""
    if sign.family in _STREAMS:
        return ()
    passing = _PASSING | {"text"} if sign.family in _TEXT_IS_DETAIL else _PASSING
    return tuple(
        (name, _shape(value) if name == "text" and isinstance(value, str) else value)
        for name, value in sorted(sign.attrs.items())
        if name not in passing and name != "location"
    )


def _shape(text: str) -> str:
    return _NUMBER.sub("#", text[:_SHAPE_CHARS])


def _joined(first: Sign, sign: Sign) -> Sign:
    """`first` with one more: earliest and latest time, and what only the later line knew. Of a stream the newest."""
    if first.family in _STREAMS:
        return replace(sign, count=first.count + sign.count)
    times = [moment for moment in (first.at, first.last_at, sign.at, sign.last_at) if moment is not None]
    return replace(
        first,
        count=first.count + sign.count,
        at=min(times, default=None),
        last_at=max(times, default=None),
        attrs={**sign.attrs, **first.attrs},
    )
