"""Rows to the time budget of training jobs: which column means which cut."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db.models import Sum

from controller.decision.training_job import TRAINING_JOB
from controller.models import Attempt, Checkpoint, Recovery, TrainingJob
from controller.queries.phases import stamps_of
from controller.queries.time_budget import Life, TimeBudget, time_budget


def lives_of(
    jobs: Iterable[TrainingJob], attempts: Mapping[int, Sequence[Attempt]], now: datetime
) -> dict[int, TimeBudget]:
    """job pk -> its time budget; two queries for any number of jobs."""
    jobs = list(jobs)
    ids = [job.pk for job in jobs]
    recoveries = {
        r.from_attempt_id: r for r in Recovery.objects.filter(training_job__in=ids).only("from_attempt", "stamps")
    }
    blocked = {
        (job, generation): total or 0.0
        for job, generation, total in Checkpoint.objects.filter(training_job__in=ids)
        .order_by()
        .values_list("training_job", "generation")
        .annotate(Sum("blocked_s"))
    }
    return {job.pk: _budget(job, attempts[job.pk], recoveries, blocked, now) for job in jobs}


def newest_word(job: TrainingJob, attempts: Sequence[Attempt], now: datetime) -> datetime:
    """The time that the page speaks of: the end, else the newest thing heard. It stands still while nothing arrives."""
    if job.ended_at is not None:
        return job.ended_at
    if job.state == "queued" and not attempts:
        return now
    times = [job.state_at, job.step_at, job.view_at]
    times += [t for a in attempts[-1:] for t in (a.created_at, a.launched_at, a.step_at, a.first_step_at, a.ended_at)]
    return min(max(t for t in times if t is not None), now)


def _budget(
    job: TrainingJob,
    attempts: Sequence[Attempt],
    recoveries: Mapping[int | None, Recovery],
    blocked: Mapping[tuple[int, int], float],
    now: datetime,
) -> TimeBudget:
    lives = [_life(a, recoveries.get(a.pk), blocked.get((job.pk, a.generation), 0.0)) for a in attempts]
    over = job.state in TRAINING_JOB.final or job.state == "stopped"
    return time_budget(job.created_at.timestamp(), newest_word(job, attempts, now).timestamp(), lives, over)


def _life(attempt: Attempt, recovery: Recovery | None, blocked_s: float) -> Life:
    stamps = {s.name: s.at for s in stamps_of(recovery.stamps)} if recovery is not None else {}
    launched = attempt.launched_at or attempt.created_at
    first_new = attempt.first_new_step_at or (attempt.first_step_at if attempt.generation == 1 else None)
    return Life(
        launched=launched.timestamp(),
        first_step=_seconds(attempt.first_step_at),
        first_new_step=_seconds(first_new),
        last_step=_seconds(attempt.step_at),
        ended=_seconds(attempt.ended_at),
        fault=stamps.get("fault"),
        requeued=stamps.get("requeued"),
        blocked_s=blocked_s,
    )


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
