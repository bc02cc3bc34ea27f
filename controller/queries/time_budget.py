"""Where the wall clock of a training job went, in parts that sum to it exactly. Pure.

The life of the job is cut at the times that the database knows: queue until a launch, start until the first step,
repeated steps until the first new one, kept training until the last step or the next fault. All cuts are rounded to the
unit first, then subtracted, so the parts add up as printed. Time blocked by saving is taken out of kept training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

KEPT, REPEATED, QUEUE, DOWN, START, SAVING, AFTER = "kept", "repeated", "queue", "down", "start", "saving", "after"
WORDS = {
    KEPT: "Kept training",
    REPEATED: "Repeated steps",
    QUEUE: "In the queue",
    DOWN: "Down",
    START: "Starting",
    SAVING: "Blocked by saving",
    AFTER: "After the last step",
}


@dataclass(frozen=True)
class Life:
    """One attempt's times, Unix seconds. `fault` and `requeued` are those of the recovery that followed it."""

    launched: float
    first_step: float | None = None
    first_new_step: float | None = None
    last_step: float | None = None
    ended: float | None = None
    fault: float | None = None
    requeued: float | None = None
    blocked_s: float = 0.0


@dataclass(frozen=True)
class Part:
    kind: str
    words: str
    units: int


@dataclass(frozen=True)
class TimeBudget:
    """`unit_s` is 0.1 s for short lives, else 1 s. `parts` sum to `total` exactly, largest share first after kept."""

    start: float
    end: float
    unit_s: float
    total: int
    parts: tuple[Part, ...]

    def units_of(self, kind: str) -> int:
        return sum(part.units for part in self.parts if part.kind == kind)

    @property
    def ettr(self) -> float | None:
        """Share of the wall clock that produced steps which were kept; None before anything ran."""
        return None if self.total <= 0 or not self.units_of(KEPT) else self.units_of(KEPT) / self.total


def time_budget(created: float, end: float, lives: Sequence[Life], over: bool) -> TimeBudget:
    """`end`: when the job ended, or the time of the newest word. `over`: no more steps are expected."""
    unit = 0.1 if end - created < 3600 else 1.0
    marks = _marks(created, end, lives, over)
    units: dict[str, int] = dict.fromkeys(WORDS, 0)
    at = round(created / unit)
    start = at
    last = max(at, round(end / unit))
    for kind, until in marks:
        stop = min(max(round(until / unit), at), last)
        units[kind] += stop - at
        at = stop
    saving = min(round(sum(life.blocked_s for life in lives) / unit), units[KEPT])
    units[KEPT] -= saving
    units[SAVING] += saving
    others = sorted((k for k in WORDS if k != KEPT and units[k]), key=lambda k: (-units[k], k))
    parts = tuple(Part(k, WORDS[k], units[k]) for k in (KEPT, *others) if units[k])
    return TimeBudget(created, end, unit, at - start, parts)


def _marks(created: float, end: float, lives: Sequence[Life], over: bool) -> list[tuple[str, float]]:
    """(kind, until): the cuts in order. Every one is clamped by the caller, so a clock that jumps loses no second."""
    if not lives:
        return [(QUEUE, end)]
    marks = [(QUEUE, lives[0].launched)]
    for k, life in enumerate(lives):
        following = lives[k + 1] if k + 1 < len(lives) else None
        marks += _of_attempt(life, following, end, over)
    return marks


def _of_attempt(life: Life, following: Life | None, end: float, over: bool) -> list[tuple[str, float]]:
    marks: list[tuple[str, float]] = []
    stop = _stop(life, following, end, over)
    if life.first_step is None:
        marks.append((START, stop))
    else:
        marks.append((START, min(life.first_step, stop)))
        repeated_until = life.first_new_step if life.first_new_step is not None else stop
        marks.append((REPEATED, min(max(repeated_until, life.first_step), stop)))
        marks.append((KEPT, stop))
    if following is not None:
        down_until = life.requeued if life.requeued is not None else (life.ended or stop)
        marks += [(DOWN, min(down_until, following.launched)), (QUEUE, following.launched)]
    else:
        marks.append(_tail(life, end, over))
    return marks


def _stop(life: Life, following: Life | None, end: float, over: bool) -> float:
    """When this attempt stopped producing steps."""
    limit = following.launched if following is not None else end
    known = [t for t in (life.fault, life.ended) if t is not None]
    if following is None and not over and not known:
        return limit
    if life.last_step is not None and life.fault is None:
        known.append(life.last_step)
    return min([*known, limit])


def _tail(life: Life, end: float, over: bool) -> tuple[str, float]:
    return (AFTER if over and life.fault is None else DOWN, end)
