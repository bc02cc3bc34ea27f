"""Time stamps as logs write them, at the beginning of a text: where they end and which moment they name."""

import calendar
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

# How much of a moment a stamp names.
ABSOLUTE, LOCAL, CLOCK, UPTIME, NOTHING = "absolute", "local", "clock", "uptime", "nothing"
# A clock without a date and nothing to date it by: seconds of an unknown day, counted on from 1970-01-01. Such moments
# order the lines of one bundle; they are not dates.
DATED_FROM = 366 * 86400.0

_DAY = 86400.0
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_MONTH = "(?P<month>" + "|".join(_MONTHS) + ")"
_HMS = r"(?P<h>[0-2]\d):(?P<m>[0-5]\d):(?P<s>[0-6]\d)(?:[.,](?P<f>\d{1,9}))?"
_ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d|(?: (?:UTC|GMT)\b)|(?: [+-]\d{4}\b))?"
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +)?"


def dated(at: float) -> bool:
    """Whether `at` is a date, or only a clock of an unknown day."""
    return at >= DATED_FROM


@dataclass(frozen=True)
class Stamp:
    """`kind`: ABSOLUTE (with a zone), LOCAL (a date of the host's zone), CLOCK, UPTIME (seconds since boot) or NOTHING
    (a stamp's brackets without a time). `value`: seconds since 1970 as if the zone were UTC, since midnight, since
    boot. `year` False: `value` lies in year 1970, the stamp has none. `end`: first character behind it."""

    kind: str
    value: float
    end: int
    year: bool = True


def _fraction(match: re.Match[str]) -> float:
    digits = match["f"]
    return float("0." + digits) if digits else 0.0


def _seconds(match: re.Match[str]) -> float:
    return int(match["h"]) * 3600 + int(match["m"]) * 60 + int(match["s"]) + _fraction(match)


def _zone(text: str | None) -> float | None:
    """Seconds east of Greenwich; None where the stamp has no zone."""
    text = (text or "").strip()
    if not text:
        return None
    if text[0] not in "+-":
        return 0.0
    digits = text[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return float(-offset if text[0] == "-" else offset)


def _stamp(match: re.Match[str], year: int | None, month: int, day: int, zone: float | None) -> Stamp | None:
    if not 1 <= month <= 12 or not 1 <= day <= 31 or int(match["h"]) > 23:
        return None
    midnight = calendar.timegm((year or 1970, month, day, 0, 0, 0))
    value = midnight + _seconds(match) - (zone or 0.0)
    return Stamp(LOCAL if zone is None else ABSOLUTE, value, match.end(), year is not None)


def _iso(match: re.Match[str]) -> Stamp | None:
    return _stamp(match, int(match["year"]), int(match["mon"]), int(match["day"]), _zone(match["zone"]))


def _named(match: re.Match[str]) -> Stamp | None:
    year = match["year"] or match["year2"]
    return _stamp(match, int(year) if year else None, _MONTHS[match["month"]], int(match["day"]), None)


def _glog(match: re.Match[str]) -> Stamp | None:
    date = match["date"]
    if date is None:
        return Stamp(NOTHING, 0.0, match.end())
    year = 2000 + int(date[:2]) if len(date) == 6 else None
    date = date[-4:]
    return _stamp(match, year, int(date[:-2]), int(date[-2:]), None)


def _clock(match: re.Match[str]) -> Stamp | None:
    return Stamp(CLOCK, _seconds(match), match.end()) if int(match["h"]) < 24 else None


def _uptime(match: re.Match[str]) -> Stamp | None:
    return Stamp(UPTIME, float(match["up"]), match.end())


def _kmsg(match: re.Match[str]) -> Stamp | None:
    return Stamp(UPTIME, int(match["us"]) / 1e6, match.end())


def _epoch(match: re.Match[str]) -> Stamp | None:
    return Stamp(ABSOLUTE, float(match["epoch"]), match.end())


Maker = Callable[[re.Match[str]], Stamp | None]

# By the first character that such a stamp can have.
_FORMS: tuple[tuple[str, re.Pattern[str], Maker], ...] = (
    (
        "0123456789[MTWFSm",
        re.compile(
            rf"\[?{_WEEKDAY}(?P<year>[12]\d\d\d)[-/](?P<mon>\d\d)[-/](?P<day>\d\d)[T _]{_HMS}{_ZONE}"
            r"(?: (?:CES?T|[PMCE][SD]T)\b)?\]?[:,]?"
        ),
        _iso,
    ),
    ("0123456789", re.compile(r"\d{1,2},\d+,(?P<us>\d{1,18}),[^;\n]{0,40};"), _kmsg),
    ("123456789", re.compile(r"(?P<epoch>[12]\d{9}\.\d{3,9})(?= )"), _epoch),
    (
        "[MTWFSJADON123456789",
        re.compile(
            rf"\[?{_WEEKDAY}(?:(?P<year>[12]\d\d\d) )?{_MONTH} +(?P<day>\d{{1,2}}),? {_HMS}(?: [A-Z]{{3,4}}(?= [12]))?"
            r"(?: (?P<year2>[12]\d\d\d)(?=[\] :]|$))?\]?:?"
        ),
        _named,
    ),
    ("[", re.compile(r"\[ *(?P<up>\d{1,10}\.\d{1,9})\](?:\[ *[TC]\d+\]| \[ +[TC]\d+\]|@\d+)?:?"), _uptime),
    (
        "[IWEFDC",
        re.compile(rf"\[?[IWEFDC](?:(?P<date>\d{{6}}|\d{{3,4}}) {_HMS})(?: +\d+)? [^\s\]]{{1,120}}:\d+\]:?"),
        _glog,
    ),
    ("[", re.compile(r"\[[IWEFD](?P<date>) [\w./+-]{1,120}:\d+\]:?"), lambda m: Stamp(NOTHING, 0.0, m.end())),
    ("012[", re.compile(rf"\[?{_HMS}\]?(?=[\s:|]|$):?"), _clock),
)  # fmt: skip
_BY_FIRST: dict[str, tuple[tuple[re.Pattern[str], Maker], ...]] = {
    first: tuple((form, make) for firsts, form, make in _FORMS if first in firsts)
    for first in {char for firsts, _, _ in _FORMS for char in firsts}
}


def read_stamp(text: str, start: int = 0) -> Stamp | None:
    """The stamp at `start`, None where there is none (or an impossible one)."""
    for form, make in _BY_FIRST.get(text[start : start + 1], ()):
        match = form.match(text, start)
        stamp = make(match) if match else None
        if stamp is not None:
            return stamp
    return None


class Clock:
    """Turns the stamps of one log into Unix seconds: it remembers the date that it saw last.

    `year`: for stamps without one; else the last year seen, else that of the reader's clock. `booted_at`: for seconds
    since boot. `utc_offset_s`: of the host's zone, for stamps without one."""

    def __init__(self, year: int | None, booted_at: float | None, utc_offset_s: float) -> None:
        self._year = year
        self._booted_at = booted_at
        self._offset = utc_offset_s
        self._day: float | None = None  # local midnight of the last date seen
        self._clock = 0.0
        self._undated_day = 0.0

    def moment(self, stamp: Stamp, at: float | None) -> float | None:
        """`at`: when the reader got the line, None unknown."""
        if stamp.kind == UPTIME:
            return None if self._booted_at is None else self._booted_at + stamp.value
        if stamp.kind == CLOCK:
            return self._of_clock(stamp.value, at)
        if stamp.kind == NOTHING:
            return None
        value = stamp.value if stamp.year else _in_year(stamp.value, self._year_for(at))
        local = value + self._offset if stamp.kind == ABSOLUTE else value
        self._day, self._clock = local - local % _DAY, local % _DAY
        return value if stamp.kind == ABSOLUTE else value - self._offset

    def _year_for(self, at: float | None) -> int:
        if self._year is not None:
            return self._year
        base = self._day if self._day is not None else at if at is not None else time.time()
        return time.gmtime(base).tm_year

    def _of_clock(self, seconds: float, at: float | None) -> float:
        if at is not None:  # the day that brings it nearest to when it was read
            local = at + self._offset
            days = round((local - local % _DAY + seconds - local) / _DAY)
            return local - local % _DAY + seconds - days * _DAY - self._offset
        if seconds < self._clock - _DAY / 2:  # past midnight; a line that comes a little late is not
            if self._day is None:
                self._undated_day += _DAY
            else:
                self._day += _DAY
        self._clock = seconds
        return self._undated_day + seconds if self._day is None else self._day + seconds - self._offset


def _in_year(value: float, year: int) -> float:
    parts = time.gmtime(value)
    return calendar.timegm((year, parts.tm_mon, parts.tm_mday, 0, 0, 0)) + value % _DAY
