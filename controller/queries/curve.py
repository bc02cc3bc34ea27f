"""One curve over all attempts. Pure: points in, traces out.

Theory. A metric point belongs to (attempt, step); nothing is ever deleted. An attempt's points are *kept* up to where
the next attempts took over, and *abandoned* from there on: the step at which any newer attempt resumed, or its first
point where that is unknown. So a line never runs back, never joins two attempts over the same step twice, and an
attempt that was restarted from an older checkpoint than its predecessor gives up more than one tail.

Reduction is by bins of a round width, anchored on absolute step 0: while points are appended, a bin that is closed
never changes, so old parts of the picture do not move. A bin keeps its mean, smallest and largest value; the first and
the last point of the whole curve are exact. What is not a number is a gap and an entry in `not_finite`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_BINS = 1000
MAX_NOT_FINITE = 200
_WORDS = {"nan": "not a number", "inf": "infinity", "-inf": "minus infinity"}


@dataclass(frozen=True)
class Series:
    """The points of one attempt, by rising step, each step once. `start_step`: the checkpoint that it resumed from."""

    attempt: int
    start_step: int | None = None
    steps: Sequence[int] = ()
    times: Sequence[float] = ()
    values: Sequence[float] = ()


class Point(NamedTuple):
    """`y` None is a gap. `low` and `high` are the extremes of the bin."""

    step: int
    time: float
    y: float | None
    low: float | None = None
    high: float | None = None


@dataclass
class Trace:
    """One drawn line, by rising step."""

    attempt: int
    kept: bool
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True)
class NotFinite:
    attempt: int
    step: int
    time: float
    kind: str
    kept: bool


@dataclass
class Curve:
    width: int
    traces: list[Trace]
    not_finite: list[NotFinite]
    not_finite_total: int


def number(raw: object) -> float:
    """A stored value: a JSON number, or `NaN`, `Infinity`, `-Infinity` as text. Anything else is not a number."""
    if isinstance(raw, bool):
        return math.nan
    if isinstance(raw, int | float):
        return float(raw)
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(raw), math.nan)


def ordered(points: Iterable[tuple[int, float, float]]) -> tuple[list[int], list[float], list[float]]:
    """(step, time, value) in the order written -> by rising step, each step once, the newest word on it winning."""
    newest = {step: (time, value) for step, time, value in points}
    steps = sorted(newest)
    return steps, [newest[s][0] for s in steps], [newest[s][1] for s in steps]


def takeover(series: Sequence[Series], attempt: int, firsts: dict[int, int] | None = None) -> int | None:
    """The first step of `attempt` that a newer one made again or gave up; None while nobody took over.

    `firsts`: the first step that an attempt has a point of, where the series hold only a part of it.
    """
    taken = [cut for s in series if s.attempt > attempt and (cut := _begins(s, firsts or {})) is not None]
    return min(taken, default=None)


def _begins(series: Series, firsts: dict[int, int]) -> int | None:
    known = [] if series.start_step is None else [series.start_step + 1]
    if series.attempt in firsts:
        known.append(firsts[series.attempt])
    elif series.steps:
        known.append(series.steps[0])
    return min(known, default=None)


def bin_width(first: int, last: int, bins: int = MAX_BINS) -> int:
    """The smallest of 1, 2, 5, 10, 20, … that cuts first..last into at most `bins` bins anchored on step 0."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            width = factor * scale
            if last // width - first // width + 1 <= bins:
                return width
        scale *= 10


def build(series: Sequence[Series], firsts: dict[int, int] | None = None, bins: int = MAX_BINS) -> Curve:
    """Every attempt's kept line and abandoned tail, reduced with one bin width for all."""
    held = sorted((s for s in series if s.steps), key=lambda s: s.attempt)
    if not held:
        return Curve(1, [], [], 0)
    width = bin_width(min(s.steps[0] for s in held), max(s.steps[-1] for s in held), bins)
    traces: list[Trace] = []
    odd: list[NotFinite] = []
    for one in held:
        cut = takeover(series, one.attempt, firsts)
        at = len(one.steps) if cut is None else bisect_left(one.steps, cut)
        for kept, begin, end in ((True, 0, at), (False, at, len(one.steps))):
            if begin < end:
                traces.append(_reduce(one, kept, begin, end, width, odd))
    return Curve(width, traces, odd[:MAX_NOT_FINITE], len(odd))


def _reduce(one: Series, kept: bool, begin: int, end: int, width: int, odd: list[NotFinite]) -> Trace:
    points: list[Point] = []
    i = begin
    while i < end:
        j = bisect_left(one.steps, (one.steps[i] // width + 1) * width, i, end)
        bad = [] if all(map(math.isfinite, one.values[i:j])) else _not_finite(one, kept, i, j)
        points += _reduce_bin(one, i, j, bad)
        odd += bad
        i = j
    _exact_ends(one, points, begin, end)
    return Trace(one.attempt, kept, points)


def _not_finite(one: Series, kept: bool, i: int, j: int) -> list[NotFinite]:
    return [
        NotFinite(one.attempt, one.steps[k], one.times[k], _WORDS[str(one.values[k])], kept)
        for k in range(i, j)
        if not math.isfinite(one.values[k])
    ]


def _reduce_bin(one: Series, i: int, j: int, bad: list[NotFinite]) -> list[Point]:
    """At most one point and one gap."""
    gap = [Point(bad[0].step, bad[0].time, None)] if bad else []
    finite = range(i, j) if not bad else [k for k in range(i, j) if math.isfinite(one.values[k])]
    if not finite:
        return gap
    values = one.values[i:j] if not bad else [one.values[k] for k in finite]
    low, high = min(values), max(values)
    mean = min(max(_mean(values), low), high)
    middle = finite[len(finite) // 2]
    point = Point(one.steps[middle], one.times[middle], mean, low, high)
    return sorted([point, *gap], key=lambda p: p.step)


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def _exact_ends(one: Series, points: list[Point], begin: int, end: int) -> None:
    """The first and the last point as they were measured, at their own steps."""
    for k, at in ((begin, 0), (end - 1, -1)):
        if not math.isfinite(one.values[k]):
            continue
        if points[at].step == one.steps[k]:
            points[at] = points[at]._replace(y=one.values[k])
        else:
            exact = Point(one.steps[k], one.times[k], one.values[k], one.values[k], one.values[k])
            points.insert(0 if at == 0 else len(points), exact)


def latest(curve: Curve) -> tuple[int, int, float] | None:
    """(attempt, step, value) of the newest kept point that is a number."""
    for trace in reversed([t for t in curve.traces if t.kept]):
        for point in reversed(trace.points):
            if point.y is not None:
                return trace.attempt, point.step, point.y
    return None
