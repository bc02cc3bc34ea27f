"""Slurm's time strings, for limits and for elapsed times."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import Enum
from typing import Final


class Unbounded(Enum):
    """The two answers that are not a length of time. They are neither equal to each other nor to zero."""

    UNLIMITED = "UNLIMITED"
    UNKNOWN = "UNKNOWN"

    def __repr__(self) -> str:
        return self.value


UNLIMITED: Final = Unbounded.UNLIMITED
UNKNOWN: Final = Unbounded.UNKNOWN

Duration = timedelta | Unbounded

_NO_LIMIT = frozenset({"UNLIMITED", "INFINITE", "-1"})
# A day part allows fewer fields after it: "d-h", "d-h:m", "d-h:m:s"; without one it is "m", "m:s" or "h:m:s".
_WITH_DAYS = re.compile(r"(\d{1,6})-(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?(?:\.\d+)?", re.ASCII)
_PLAIN = re.compile(r"(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,2}))?(?:\.\d+)?", re.ASCII)


def parse(text: str | None) -> Duration:
    """The length of time that `text` says; UNKNOWN for everything that says none. Never raises.

    A bare number is minutes, as in a limit field; "m:s" is minutes and seconds; "d-h" is days and hours.
    Partition_Limit is UNKNOWN: the limit exists, but only the partition knows it.
    """
    word = text.strip() if isinstance(text, str) else ""
    if word.upper() in _NO_LIMIT:
        return UNLIMITED
    if with_days := _WITH_DAYS.fullmatch(word):
        days, hours, minutes, seconds = (int(part or 0) for part in with_days.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if plain := _PLAIN.fullmatch(word):
        first, second, third = plain.groups()
        if third is not None:
            return timedelta(hours=int(first), minutes=int(second), seconds=int(third))
        return timedelta(minutes=int(first), seconds=int(second or 0))
    return UNKNOWN
