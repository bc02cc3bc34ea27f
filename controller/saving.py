"""How often each training job should save: from what its saves cost and how often this cluster interrupts jobs.

The arithmetic is `decision.interval`; here are the rows it rests on. The advice is kept with the training
job: agents get it in their answers, the page shows it beside what the job does now.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from controller.clock import aware
from controller.decision.interval import DAY_S, Costs, History, advise, lost_share
from controller.decision.policy import CheckpointInterval
from controller.models import AgentReport, Attempt, Checkpoint, Cluster, Incident, Recovery, TrainingJob
from worker_hooks.protocol.tiers import SHARED

EVERY_S = 60.0
HISTORY_DAYS = 90.0
# Ends that a checkpoint makes up for; a user's error comes again at the same step.
INTERRUPTIONS = ("infrastructure", "process")
MEASURED = 20  # saves and restarts that the medians are taken over


def refresh(cluster: Cluster, now: float, policy: CheckpointInterval) -> None:
    """New advice for every training job that trains and has none of the last minute."""
    jobs = [
        job
        for job in TrainingJob.objects.filter(cluster=cluster, state__in=("training", "verifying"))
        if now - job.saving.get("at", 0.0) >= EVERY_S
    ]
    if not jobs:
        return
    seen = history(cluster, now)
    for job in jobs:
        saving = advice_for(job, seen, now, policy)
        if saving:
            TrainingJob.objects.filter(pk=job.pk).update(saving=saving)


def advice_for(job: TrainingJob, seen: History, now: float, policy: CheckpointInterval) -> dict[str, Any]:
    """{} before a first save was measured. Times in seconds; `present_s` None until two saves of one attempt are in."""
    saves = list(_saves(job).filter(blocked_s__isnull=False)[:MEASURED])
    attempt = job.attempts.order_by("-generation").first()
    if not saves or attempt is None:
        return {}
    costs = Costs(
        cost_s=median(save.blocked_s or 0.0 for save in saves),
        durable_s=median([save.durable_s for save in saves if save.durable_s is not None] or [0.0]),
        restart_s=_restart_s(job),
    )
    found = advise(costs, len(attempt.nodes), seen, policy)
    present = _present_s(saves)
    return {
        "at": now,
        **asdict(costs),
        **asdict(found),
        "failures": seen.failures,
        "node_days": round(seen.node_days, 3),
        "present_s": present,
        "present_lost_share": None if present is None else lost_share(present, costs, found.mtbf_s),
    }


def measured_before(job: TrainingJob) -> dict[str, float]:
    """What the newest training job of this owner and name has shown: `step_s`, and `save_s` until a save counts."""
    earlier = TrainingJob.objects.filter(owner=job.owner, name=job.name, cluster=job.cluster, step__isnull=False)
    before = earlier.order_by("-created_at").first() if job.name else None
    if before is None:
        return {}
    found: dict[str, float] = {}
    saves = _saves(before).filter(durable_s__isnull=False)[:MEASURED]
    if took := [save.durable_s for save in saves if save.durable_s is not None]:
        found["save_s"] = median(took)
    reports = AgentReport.objects.filter(attempt__training_job=before, leader=True).order_by("-attempt__generation")
    paces = [(rank.get("pace") or {}).get("step_median_s") for report in reports[:1] for rank in report.ranks]
    if known := [pace for pace in paces if isinstance(pace, int | float)]:
        found["step_s"] = median(known)
    return found


def history(cluster: Cluster, now: float) -> History:
    """Of the last HISTORY_DAYS: interruptions, and the time that nodes spent in attempts."""
    since = aware(now - HISTORY_DAYS * DAY_S)
    failures = Incident.objects.filter(
        cluster=cluster, budget__in=INTERRUPTIONS, detected_at__gt=since, training_job__isnull=False
    ).exclude(state="abandoned")
    attempts = Attempt.objects.filter(training_job__cluster=cluster).exclude(ended_at__lt=since)
    days = sum(
        len(nodes) * _seconds(max(launched or created, since), ended or aware(now)) / DAY_S
        for nodes, launched, created, ended in attempts.values_list("nodes", "launched_at", "created_at", "ended_at")
    )
    return History(failures.count(), days)


def _saves(job: TrainingJob) -> Any:
    """The newest first. On shared storage: that nodes are lost with what lies on them, the model knows nothing of."""
    return job.checkpoints.filter(state="committed", tier=SHARED).order_by("-committed_at")


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


def _present_s(saves: Sequence[Checkpoint]) -> float | None:
    """The usual time between two saves of the newest attempt."""
    times = sorted(save.committed_at for save in saves if save.generation == saves[0].generation)
    return median([_seconds(first, then) for first, then in pairwise(times)] or [0.0]) or None


def _restart_s(job: TrainingJob) -> float:
    """From the fault to the first step, of this job's own recoveries; 0 before the first."""
    found: list[float] = []
    for recovery in Recovery.objects.filter(training_job=job).order_by("-pk")[:MEASURED]:
        stamps = {name: stamp["at"] for name, stamp in recovery.stamps.items() if "at" in stamp}
        if "fault" in stamps and "first_step" in stamps:
            found.append(stamps["first_step"] - stamps["fault"])
    return median(found or [0.0])
