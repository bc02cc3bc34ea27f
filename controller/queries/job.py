"""One training job with everything that its page shows, in a fixed number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Max

from controller.decision.facts import Spent
from controller.decision.incident import INCIDENT
from controller.models import AgentReport, Attempt, Checkpoint, Incident, MetricChunk, Node, TrainingJob
from controller.queries.access import visible_jobs
from controller.queries.budgets import lives_of, newest_word
from controller.queries.curve import number
from controller.queries.incidents import with_story
from controller.queries.tenants import Tenant, tenants_of
from controller.queries.time_budget import TimeBudget
from controller.snapshot import past
from controller.snapshot.job_view import excuse
from worker_hooks.protocol.tiers import LOCAL, SHARED

CHECKPOINTS_SHOWN = 12
LOCAL_SHOWN = 3  # no more stay on the nodes
INCIDENTS_SHOWN = 20


@dataclass(frozen=True)
class LatestLoss:
    step: int
    value: float
    attempt: int


@dataclass
class JobStory:
    """`at`: the newest word on the job; every age on the page is counted from there or by the reader's own clock."""

    job: TrainingJob
    at: datetime
    attempts: list[Attempt]
    incidents: list[Incident]
    checkpoints: list[Checkpoint]
    checkpoints_total: int
    newest_good: Checkpoint | None
    reports: list[AgentReport]
    budget: TimeBudget
    loss: LatestLoss | None
    spent: Spent
    tenants: dict[int, list[Tenant]]  # by node id, of the nodes that its incidents hold
    commits: dict[int, list[tuple[int, float]]]  # by generation: step and time
    quiet_nodes: list[Node]  # of the newest attempt, with flags that may excuse a silence

    @property
    def attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def excuse(self) -> str | None:
        """Why nothing need be heard from the job now, by Slurm's last view of it."""
        return excuse(self.job.view)

    @property
    def live_incident(self) -> Incident | None:
        return next((i for i in self.incidents if i.state in INCIDENT.live), None)

    def incident_of(self, attempt: Attempt) -> Incident | None:
        """The incident that hit this attempt: the newest, when there were several."""
        return next((i for i in self.incidents if i.attempt_id == attempt.pk), None)


def find(user: Any, run_id: str) -> TrainingJob | None:
    """None for what does not exist and for what this user may not see: the two cannot be told apart."""
    return visible_jobs(user).select_related("cluster").filter(run_id=run_id).first()


def story_of(job: TrainingJob, now: datetime, user: Any) -> JobStory:
    """`user`: the reader, who may not know everything about other people's jobs."""
    attempts = list(job.attempts.all())
    incidents = list(_incidents(job))
    newest = attempts[-1] if attempts else None
    reports = list(newest.agents.order_by("node")) if newest is not None else []
    return JobStory(
        job=job,
        at=newest_word(job, attempts, now),
        attempts=attempts,
        incidents=incidents,
        checkpoints=_checkpoints(job, attempts),
        checkpoints_total=job.checkpoints.filter(tier=SHARED).count(),
        newest_good=_newest_good(job),
        reports=reports,
        budget=lives_of([job], {job.pk: attempts}, now)[job.pk],
        loss=_latest_loss(job, attempts),
        spent=past.spent(past.read([job]).get(job.pk, []), attempts),
        tenants=tenants_of(user, (hold.node for incident in incidents for hold in incident.holds.all())),
        commits=commits_of(job),
        quiet_nodes=_quiet_nodes(job, newest),
    )


def _quiet_nodes(job: TrainingJob, attempt: Attempt | None) -> list[Node]:
    if attempt is None or attempt.state == "ended":
        return []
    flagged = Node.objects.filter(cluster=job.cluster_id, name__in=attempt.nodes).exclude(flags=[])
    return list(flagged.only("name", "flags").order_by("name"))


def _incidents(job: TrainingJob) -> Any:
    return with_story(job.incidents.order_by("-detected_at", "-pk"))[:INCIDENTS_SHOWN]


def _newest_good(job: TrainingJob) -> Checkpoint | None:
    """What is there whatever becomes of the nodes."""
    return job.checkpoints.filter(state="committed", tier=SHARED).order_by("-step", "-generation").first()


def newest_checkpoints(job: TrainingJob, shared: int, local: int) -> list[Checkpoint]:
    """The newest so many of each tier, highest step first."""
    ordered = job.checkpoints.order_by("-step", "-generation")
    found = [*ordered.filter(tier=SHARED)[:shared], *ordered.filter(tier=LOCAL)[:local]]
    return sorted(found, key=lambda row: (row.step, row.generation, row.tier), reverse=True)


def _checkpoints(job: TrainingJob, attempts: list[Attempt]) -> list[Checkpoint]:
    """The newest, and those that an attempt began from."""
    newest = newest_checkpoints(job, CHECKPOINTS_SHOWN, LOCAL_SHOWN)
    folders = [a.start_folder for a in attempts if a.start_folder]
    began = job.checkpoints.filter(folder__in=folders).exclude(pk__in=[c.pk for c in newest])
    return newest + list(began.order_by("-step", "-generation"))


def commits_of(job: TrainingJob) -> dict[int, list[tuple[int, float]]]:
    """(step, when) of what is committed on shared storage, by generation."""
    found: dict[int, list[tuple[int, float]]] = {}
    rows = job.checkpoints.filter(state="committed", tier=SHARED).values_list("generation", "step", "committed_at")
    for generation, step, at in rows:
        found.setdefault(generation, []).append((step, at.timestamp()))
    return found


def _latest_loss(job: TrainingJob, attempts: list[Attempt]) -> LatestLoss | None:
    """The last word of rank 0 in the newest attempt that has points."""
    chunks = MetricChunk.objects.filter(training_job=job, name="loss", rank=0)
    newest = chunks.aggregate(Max("attempt__generation"))["attempt__generation__max"]
    chunk = chunks.filter(attempt__generation=newest).order_by("-last_step", "-pk").first() if newest else None
    if chunk is None or not chunk.steps or len(chunk.values) < len(chunk.steps):
        return None
    return LatestLoss(int(chunk.steps[-1]), number(chunk.values[len(chunk.steps) - 1]), newest)
