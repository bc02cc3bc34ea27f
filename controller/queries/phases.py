"""A recovery's clock as phases that sum exactly. Pure.

Phases join consecutive stamps that exist, from the fault to the first new step. A missing stamp makes its phase part of
the next one; nothing is interpolated. Stamps are rounded to the unit *before* they are subtracted, so what is printed
adds up to what is printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The clock of a recovery in its usual order, with the words of the page.
NAMES = {
    "last_good": "Last good sign",
    "fault": "Fault",
    "detected": "Detected",
    "diagnosed": "Diagnosed",
    "held": "Held",
    "killed": "Told to end",
    "torn_down": "Torn down",
    "requeued": "Requeued",
    "released": "Released",
    "allocated": "Allocated (queue wait)",
    "launched": "Launched",
    "rendezvous": "Rendezvous",
    "loaded": "Loaded",
    "warmed_up": "Warmed up",
    "first_step": "First step",
    "first_new_step": "First new step",
    "verified": "Verified",
}
ALIASES = {"last_good_sign": "last_good", "warmed": "warmed_up"}
_ORDER = {name: k for k, name in enumerate(NAMES)}
TENTHS = 10


@dataclass(frozen=True)
class Stamp:
    name: str
    words: str
    at: float
    source: str


@dataclass(frozen=True)
class Phase:
    """What ended at stamp `name`, after `tenths` tenths of a second."""

    name: str
    words: str
    tenths: int
    at: float
    source: str

    @property
    def seconds(self) -> float:
        return self.tenths / TENTHS


@dataclass(frozen=True)
class Phases:
    """`total` (RTO) is None until there is a first new step; the phases then sum to it exactly."""

    fault: Stamp | None
    phases: tuple[Phase, ...]
    total: int | None
    missing: tuple[str, ...]
    verified: Stamp | None
    verified_after: int | None


def stamps_of(raw: Mapping[str, Any]) -> list[Stamp]:
    """`{name: {"at", "source"}}` by time; equal times keep the clock's usual order. Unreadable entries are left out."""
    stamps = []
    for key, value in raw.items():
        name = ALIASES.get(key, key)
        at = value.get("at") if isinstance(value, Mapping) else value
        if isinstance(at, int | float) and not isinstance(at, bool):
            source = str(value.get("source", "")) if isinstance(value, Mapping) else ""
            stamps.append(Stamp(name, NAMES.get(name, name.replace("_", " ").capitalize()), float(at), source))
    return sorted(stamps, key=lambda s: (s.at, _ORDER.get(s.name, len(_ORDER))))


def phases_of(raw: Mapping[str, Any]) -> Phases:
    """From the fault on; what lies before it is no phase, and after the first new step only the verification counts."""
    stamps = stamps_of(raw)
    by_name = {s.name: s for s in stamps}
    fault, end, verified = by_name.get("fault"), by_name.get("first_new_step"), by_name.get("verified")
    missing = tuple(words for name, words in NAMES.items() if name not in by_name and name != "last_good")
    if fault is None:
        return Phases(None, (), None, missing, verified, None)
    inside = [
        s
        for s in stamps
        if s.name not in ("fault", "last_good", "verified") and s.at >= fault.at and (end is None or s.at <= end.at)
    ]
    phases, before = [], _tenths(fault.at)
    for stamp in inside:
        phases.append(Phase(stamp.name, stamp.words, _tenths(stamp.at) - before, stamp.at, stamp.source))
        before = _tenths(stamp.at)
    total = None if end is None else _tenths(end.at) - _tenths(fault.at)
    after = None if verified is None or end is None else _tenths(verified.at) - _tenths(end.at)
    return Phases(fault, tuple(phases), total, missing, verified, after)


def _tenths(at: float) -> int:
    return round(at * TENTHS)
