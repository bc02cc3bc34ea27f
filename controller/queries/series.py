"""Metric points read from their chunks, and kept decoded between reads: a page that is open asks every few seconds.

The cache is of this process only and never the truth: it is used while the chunks that it was made of are still all
there is up to its newest one, and extended by those above. Commits may arrive out of order, so the count is compared.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Max, QuerySet

from controller.models import Attempt, MetricChunk, TrainingJob
from controller.queries.curve import Series, number, ordered

CACHED_POINTS = 4_000_000

_Key = tuple[int, str, int]


@dataclass
class _Decoded:
    """The points of one attempt as written, by chunk id. `rising`: every step came after the one before it."""

    last_id: int = 0
    chunks: int = 0
    rising: bool = True
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def extend(self, rows: Iterable[tuple[int, list[Any], list[Any], list[Any]]]) -> None:
        for chunk_id, steps, times, values in rows:
            for step, time, value in zip(steps, times, values, strict=False):
                self.rising = self.rising and (not self.steps or self.steps[-1] < step)
                self.steps.append(int(step))
                self.times.append(float(time))
                self.values.append(number(value))
            self.last_id = chunk_id
            self.chunks += 1

    def points(self) -> tuple[Sequence[int], Sequence[float], Sequence[float]]:
        """By rising step, each step once. Copies: another request may extend the originals."""
        if self.rising:
            return self.steps[:], self.times[:], self.values[:]
        return ordered(zip(self.steps, self.times, self.values, strict=True))


_cache: OrderedDict[_Key, _Decoded] = OrderedDict()
_lock = threading.Lock()


def ranks_and_names(job: TrainingJob) -> list[tuple[str, int]]:
    """(metric name, rank) pairs that have points."""
    pairs = MetricChunk.objects.filter(training_job=job).values_list("name", "rank").distinct().order_by("name", "rank")
    return list(pairs)


def series_of(job: TrainingJob, attempts: Iterable[Attempt], name: str, rank: int) -> list[Series]:
    """The whole series of every attempt, also of those without a point (they may have taken steps over)."""
    found = []
    for attempt in attempts:
        steps, times, values = _read(attempt.pk, name, rank)
        found.append(Series(attempt.generation, attempt.start_step, steps, times, values))
    return found


def stamp_of(job: TrainingJob, name: str, rank: int) -> tuple[int, int]:
    """Changes whenever a point of that metric is added: (chunks, newest id)."""
    found = _chunks(name, rank).filter(training_job=job).aggregate(chunks=Count("id"), newest=Max("id"))
    return found["chunks"], found["newest"] or 0


def part(series: Series, first: int | None, last: int | None) -> Series:
    """Only the steps first..last, both included: the range is cut before anything is reduced."""
    begin = 0 if first is None else bisect_left(series.steps, first)
    end = len(series.steps) if last is None else bisect_right(series.steps, last)
    return Series(
        series.attempt,
        series.start_step,
        series.steps[begin:end],
        series.times[begin:end],
        series.values[begin:end],
    )


def _chunks(name: str, rank: int) -> QuerySet[MetricChunk]:
    return MetricChunk.objects.filter(name=name, rank=rank)


def _read(attempt_id: int, name: str, rank: int) -> tuple[Sequence[int], Sequence[float], Sequence[float]]:
    key = (attempt_id, name, rank)
    rows = _chunks(name, rank).filter(attempt_id=attempt_id)
    with _lock:
        decoded = _cache.pop(key, None) or _Decoded()
        if decoded.chunks != rows.filter(id__lte=decoded.last_id).count():
            decoded = _Decoded()
        new = rows.filter(id__gt=decoded.last_id).order_by("id").values_list("id", "steps", "times", "values")
        decoded.extend(new.iterator(chunk_size=500))
        _cache[key] = decoded
        _forget()
        return decoded.points()


def _forget() -> None:
    """The series longest unused go first; the one just read stays."""
    while len(_cache) > 1 and sum(len(d.steps) for d in _cache.values()) > CACHED_POINTS:
        _cache.popitem(last=False)


def forget_all() -> None:
    """Between tests: row ids repeat in a fresh database."""
    with _lock:
        _cache.clear()
