"""A small loss line for each of many training jobs: a bounded number of chunks, whatever the jobs' length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Max

from controller.models import Attempt, MetricChunk, TrainingJob
from controller.queries.curve import Series, number, takeover

BINS = 48


@dataclass(frozen=True)
class Spark:
    """`lines`: (attempt, [(step, value)]) of what was kept; `restarts`: (attempt, step it resumed from)."""

    lines: list[tuple[int, list[tuple[int, float]]]]
    restarts: list[tuple[int, int]]
    last_step: int


def sparks_of(jobs: Iterable[TrainingJob], attempts: Mapping[int, Sequence[Attempt]]) -> dict[int, Spark]:
    """One chunk of rank 0 for each of `BINS` ranges of steps: the newest written, which is the newest attempt's."""
    jobs = [job for job in jobs if job.step]
    # A restart sets the step back: what lies beyond it was given up, and would not fit into the ranges.
    chunks = MetricChunk.objects.filter(
        training_job__in=jobs, name="loss", rank=0, first_step__lte=F("training_job__step")
    )
    newest = (
        chunks.annotate(bin=F("first_step") * BINS / F("training_job__step"))
        .order_by()
        .values("training_job", "bin")
        .annotate(newest=Max("id"))
        .values_list("newest", flat=True)
    )
    rows: dict[int, list[tuple[int, list[Any], list[Any]]]] = {}
    # A list, not a subquery: SQLite would scan the table for `IN (SELECT … GROUP BY …)` once for each row.
    found = MetricChunk.objects.filter(pk__in=list(newest)).order_by("first_step")
    for job_id, attempt_id, steps, values in found.values_list("training_job", "attempt", "steps", "values"):
        rows.setdefault(job_id, []).append((attempt_id, steps, values))
    return {job.pk: _spark(job, attempts[job.pk], rows[job.pk]) for job in jobs if job.pk in rows}


def _spark(job: TrainingJob, attempts: Sequence[Attempt], rows: Sequence[tuple[int, list[Any], list[Any]]]) -> Spark:
    points: dict[int, dict[int, float]] = {}
    for attempt_id, steps, values in rows:
        stride = max(1, len(steps) // 4)
        kept = points.setdefault(attempt_id, {})
        for step, raw in [*zip(steps, values, strict=False)][::stride]:
            value = number(raw)
            if math.isfinite(value):
                kept[int(step)] = value
    series = [Series(a.generation, a.start_step, sorted(points.get(a.pk, {}))) for a in attempts]
    lines = []
    for attempt, one in zip(attempts, series, strict=True):
        cut = takeover(series, one.attempt)
        line = [(s, points[attempt.pk][s]) for s in one.steps if cut is None or s < cut]
        if line:
            lines.append((one.attempt, line))
    restarts = [(a.generation, a.start_step) for a in attempts[1:] if a.start_step is not None]
    last = max([job.step or 0, *(s for _, line in lines for s, _ in line)])
    return Spark(lines, restarts, last)
