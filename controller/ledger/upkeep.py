"""State changes that follow from other rows alone: attempts that a newer one replaced, attempts of scripts without an
agent, and holds whose node has emptied."""

from datetime import timedelta
from typing import Any, TypeVar

from django.db.models import Exists, OuterRef

from controller.clock import aware
from controller.decision.attempt import ATTEMPT
from controller.decision.machine import RefusedTransition
from controller.decision.training_job import TRAINING_JOB
from controller.ledger.moves import LostRace, move
from controller.models import Attempt, Cluster, NodeHold, TrainingJob

# An agent speaks within seconds of its start; a script that runs this long without one has none.
AGENTLESS_AFTER_S = 30.0

Followed = TypeVar("Followed", Attempt, NodeHold)


def follow_attempts(cluster: Cluster, now: float) -> None:
    _count_restarts(cluster, now)
    newer = Attempt.objects.filter(training_job=OuterRef("training_job"), generation__gt=OuterRef("generation"))
    stale = Attempt.objects.filter(training_job__cluster=cluster, state__in=ATTEMPT.live).filter(Exists(newer))
    for attempt in stale:
        reason = "a newer attempt took over"
        _quietly(attempt, "end", reason, now, outcome="superseded", outcome_reason=reason)


def _count_restarts(cluster: Cluster, now: float) -> None:
    """Scripts that never speak to us: each start that Slurm shows is an attempt, numbered by Slurm's restarts."""
    speaking = Attempt.objects.filter(training_job=OuterRef("pk"), agentless=False)
    jobs = TrainingJob.objects.filter(cluster=cluster, state__in=TRAINING_JOB.live, view__base="RUNNING")
    for job in jobs.filter(~Exists(speaking)):
        started = job.view.get("start_time")
        if job.view.get("missing") or started is None or now - started < AGENTLESS_AFTER_S:
            continue
        Attempt.objects.get_or_create(
            training_job=job,
            generation=job.view["restarts"] + 1,
            defaults={
                "agentless": True,
                "slurm_job_id": job.view["job_id"],
                "restart_count": job.view["restarts"],
                "nodes": job.view["nodes"],
                "created_at": aware(now),
                "launched_at": aware(started),
            },
        )


def follow_holds(cluster: Cluster, now: float) -> None:
    """`drained`: Slurm shows the node out and nothing runs there. `released`: a person returned it to service."""
    holds = NodeHold.objects.filter(node__cluster=cluster, state__in=("draining", "drained")).select_related("node")
    for hold in holds.exclude(slurm_reason=""):
        node = hold.node
        # Slurm's times are whole seconds: a view from the same moment may be older than the drain.
        since = max(hold.state_at, (hold.slurm_reason_at or hold.state_at) + timedelta(seconds=2))
        if cluster.view_at is None or cluster.view_at <= since:
            continue
        out = bool({"DRAIN", "FAIL"} & set(node.flags))
        empty = not node.jobs and "COMPLETING" not in node.flags and node.base_state in ("IDLE", "DOWN")
        if not out and node.base_state != "DOWN":
            _quietly(hold, "release", "Slurm shows the node in service again", now, by="somebody in Slurm")
        elif hold.state == "draining" and empty:
            _quietly(hold, "drained", "Slurm shows it out and empty", now)
        elif hold.state == "drained" and node.jobs:
            _quietly(hold, "jobs_returned", f"jobs run on it: {', '.join(node.jobs)}", now)


def _quietly(row: Followed, event: str, reason: str, now: float, **also: Any) -> None:
    """Somebody else was faster: nothing to do."""
    try:
        move(row, event, reason=reason, now=now, **also)
    except (LostRace, RefusedTransition):
        return
