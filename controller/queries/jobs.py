"""The list of training jobs: filtered, counted, paged by key, with a fixed number of queries for any length."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, Count, IntegerField, Q, QuerySet, Value, When

from controller.models import Attempt, Incident, TrainingJob
from controller.queries.access import own_jobs, visible_jobs
from controller.queries.budgets import lives_of
from controller.queries.sparks import Spark, sparks_of
from controller.queries.time_budget import TimeBudget

PAGE = 50
STATES = {
    "needs": ("stopped",),
    "moving": ("starting", "training", "recovering", "verifying"),
    "queued": ("queued",),
    "ended": ("finished", "cancelled"),
}
RESTARTED_WITHIN = timedelta(hours=24)


@dataclass(frozen=True)
class Filters:
    """What the query string asks for. `who`: `mine` or, for staff, `all`."""

    who: str = "mine"
    state: str = ""
    restarted: bool = False
    text: str = ""

    def narrowed(self) -> bool:
        return bool(self.state or self.restarted or self.text)


@dataclass(frozen=True)
class Cursor:
    """The sort key of the last row shown: the next page begins behind it, whatever was added meanwhile."""

    calm: int
    created_at: datetime
    pk: int


@dataclass
class Row:
    job: TrainingJob
    attempts: list[Attempt]
    incident: Incident | None
    budget: TimeBudget
    spark: Spark | None

    @property
    def attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def restarts(self) -> int:
        return max(len(self.attempts) - 1, 0)


@dataclass
class Page:
    rows: list[Row]
    needs_you: list[Row]
    counts: dict[str, int]
    matching: int
    older: Cursor | None
    filters: Filters = field(default_factory=Filters)

    @property
    def total(self) -> int:
        return sum(self.counts[k] for k in STATES)


def page_of(user: Any, filters: Filters, now: datetime, after: Cursor | None = None) -> Page:
    """Those needing a person first, then newest first; ties by id, so that rows stay put."""
    scope = visible_jobs(user) if filters.who == "all" else own_jobs(user)
    counts = _counts(scope, now)
    found = _matching(scope, filters, now)
    matching = found.count() if filters.narrowed() else sum(counts[k] for k in STATES)
    ordered = found.annotate(calm=_calm()).order_by("calm", "-created_at", "-pk")
    if after is not None:
        ordered = ordered.filter(_behind(after))
    jobs = list(ordered.select_related("cluster")[: PAGE + 1])
    shown = jobs[:PAGE]
    older = _cursor(shown[-1]) if len(jobs) > PAGE else None
    needing = list(scope.filter(state="stopped").order_by("-state_at", "-pk")[:5]) if after is None else []
    rows = {row.job.pk: row for row in _rows(shown + [j for j in needing if j not in shown], now)}
    return Page([rows[j.pk] for j in shown], [rows[j.pk] for j in needing], counts, matching, older, filters)


def _calm() -> Case:
    return Case(When(state="stopped", then=Value(0)), default=Value(1), output_field=IntegerField())


def _cursor(job: TrainingJob) -> Cursor:
    return Cursor(0 if job.state == "stopped" else 1, job.created_at, job.pk)


def _behind(after: Cursor) -> Q:
    same = Q(calm=after.calm)
    return (
        Q(calm__gt=after.calm)
        | (same & Q(created_at__lt=after.created_at))
        | (same & Q(created_at=after.created_at) & Q(pk__lt=after.pk))
    )


def _counts(scope: QuerySet[TrainingJob], now: datetime) -> dict[str, int]:
    by_state = dict(scope.order_by().values_list("state").annotate(Count("pk")))
    counts = {name: sum(by_state.get(s, 0) for s in states) for name, states in STATES.items()}
    counts["restarted"] = _restarted(scope, now).count()
    return counts


def _restarted(scope: QuerySet[TrainingJob], now: datetime) -> QuerySet[TrainingJob]:
    recent = Attempt.objects.filter(generation__gt=1, created_at__gte=now - RESTARTED_WITHIN)
    return scope.filter(pk__in=recent.values("training_job"))


def _matching(scope: QuerySet[TrainingJob], filters: Filters, now: datetime) -> QuerySet[TrainingJob]:
    if filters.state:
        scope = scope.filter(state__in=STATES[filters.state])
    if filters.restarted:
        scope = _restarted(scope, now)
    if filters.text:
        match = Q(name__icontains=filters.text) | Q(run_id__icontains=filters.text)
        match |= Q(slurm_job_id=filters.text) | Q(slurm_job_id__startswith=f"{filters.text}_")
        if filters.who == "all":
            match |= Q(owner__iexact=filters.text)
        scope = scope.filter(match)
    return scope


def _rows(jobs: list[TrainingJob], now: datetime) -> list[Row]:
    ids = [job.pk for job in jobs]
    attempts: dict[int, list[Attempt]] = {pk: [] for pk in ids}
    # The wide columns (checks, log tails) are left where they are.
    for attempt in (
        Attempt.objects.filter(training_job__in=ids).defer("checks", "log_tail", "exits").order_by("generation")
    ):
        attempts[attempt.training_job_id].append(attempt)
    incidents: dict[int, Incident] = {}
    for incident in Incident.objects.filter(training_job__in=ids).order_by("detected_at", "pk"):
        incidents[incident.training_job_id] = incident
    budgets = lives_of(jobs, attempts, now)
    sparks = sparks_of(jobs, attempts)
    return [Row(j, attempts[j.pk], incidents.get(j.pk), budgets[j.pk], sparks.get(j.pk)) for j in jobs]
