"""The clock of a recovery: dated stamps, each with the row it comes from, and what was lost and verified.

A stamp whose row is missing is absent, never interpolated. `controller.queries.phases` joins them to phases.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from controller.clock import aware
from controller.decision import actions
from controller.decision.incident import INCIDENT
from controller.models import Action, Attempt, Checkpoint, Cluster, MetricChunk, Recovery, StateChange

ATTEMPT_STAMPS = {
    "launched": "launched_at",
    "rendezvous": "rendezvous_at",
    "loaded": "loaded_at",
    "warmed_up": "warmed_up_at",
    "first_step": "first_step_at",
    "first_new_step": "first_new_step_at",
}
# From `killed` to `torn_down` the job is COMPLETING; from `released` to `allocated` it waits in the queue.
REQUEUE_STAMPS = {
    "killed": "killed_at",
    "torn_down": "settled_at",
    "requeued": "requeued_at",
    "released": "released_at",
    "allocated": "running_at",
}
REFRESH_AFTER_END_S = 120.0
REFRESH_WAITING_S = 3600.0

Stamps = dict[str, dict[str, Any]]


def refresh(cluster: Cluster, now: float) -> None:
    """Brings the recoveries of live and just ended incidents up to date. Writes only what changed."""
    moving = Q(incident__state__in=[state for state in INCIDENT.live if state != "awaiting_operator"])
    waiting = Q(incident__state="awaiting_operator", incident__detected_at__gt=aware(now - REFRESH_WAITING_S))
    ended = Q(incident__ended_at__gt=aware(now - REFRESH_AFTER_END_S)) & ~Q(incident__state="observed_only")
    rows = Recovery.objects.filter(moving | waiting | ended, incident__cluster=cluster)
    for recovery in rows.select_related("incident", "from_attempt", "to_attempt", "training_job"):
        _refresh(recovery)


def _refresh(recovery: Recovery) -> None:
    before = _content(recovery)
    recovery.to_attempt = recovery.to_attempt or _next_attempt(recovery)
    recovery.stamps = stamps_of(recovery)
    _lost(recovery)
    _verification(recovery)
    if _content(recovery) != before:
        recovery.save()


def _content(recovery: Recovery) -> tuple[Any, ...]:
    return (
        recovery.to_attempt_id,
        recovery.stamps,
        recovery.rpo_steps,
        recovery.rpo_s,
        recovery.rpo_gpu_hours,
        recovery.verification,
        recovery.checks,
    )


def _next_attempt(recovery: Recovery) -> Attempt | None:
    if recovery.from_attempt is None:
        return None
    later = Attempt.objects.filter(
        training_job=recovery.training_job_id, generation__gt=recovery.from_attempt.generation
    )
    return later.order_by("generation").first()


# --- stamps -----------------------------------------------------------------------------------------------------


def stamps_of(recovery: Recovery) -> Stamps:
    incident, attempt = recovery.incident, recovery.to_attempt
    stamps: Stamps = {}
    for name in ("last_good", "fault", "detected"):
        _stamp(stamps, name, getattr(incident, f"{name}_at"), f"incident:{incident.pk}:{name}_at")
    changes = StateChange.objects.filter(table=INCIDENT.name, row=incident.pk)
    for change in changes.filter(event__in=("diagnose", "verified")).order_by("pk"):
        name = "diagnosed" if change.event == "diagnose" else "verified"
        _stamp(stamps, name, change.at, f"statechange:{change.pk}:at")
    for action in Action.objects.filter(incident=incident).order_by("pk"):
        _action_stamps(stamps, action)
    if attempt is not None:
        for name, column in ATTEMPT_STAMPS.items():
            _stamp(stamps, name, getattr(attempt, column), f"attempt:{attempt.pk}:{column}")
    if "allocated" not in stamps:
        _started_by_slurm(stamps, recovery)
    return stamps


def _started_by_slurm(stamps: Stamps, recovery: Recovery) -> None:
    """A job that waited long in the queue starts when nobody is looking: Slurm's own StartTime of the first start after
    the fault. It is kept, because the view it comes from moves on."""
    before = recovery.stamps.get("allocated")
    if before is not None:
        stamps["allocated"] = before
        return
    job, view = recovery.training_job, recovery.training_job.view
    start, restarts = view.get("start_time"), view.get("restarts", 0)
    of_this = recovery.to_attempt is None or recovery.to_attempt.restart_count == restarts
    if view.get("base") == "RUNNING" and start and restarts > recovery.incident.restarts_before and of_this:
        _stamp(stamps, "allocated", start, f"trainingjob:{job.pk}:view.start_time")


def _stamp(stamps: Stamps, name: str, at: datetime | float | None, source: str) -> None:
    if at is not None:
        seconds = at.timestamp() if isinstance(at, datetime) else float(at)
        stamps[name] = {"at": seconds, "source": source}


def _action_stamps(stamps: Stamps, action: Action) -> None:
    if action.kind == actions.HOLD_NODE:
        at = action.progress.get("drained_at")
        if at is not None and at >= stamps.get("held", {"at": 0.0})["at"]:
            _stamp(stamps, "held", at, f"action:{action.pk}:progress.drained_at")
    if action.kind == actions.REQUEUE:
        for name, key in REQUEUE_STAMPS.items():
            _stamp(stamps, name, action.progress.get(key), f"action:{action.pk}:progress.{key}")
        if "torn_down" in stamps and stamps["killed"]["at"] > stamps["torn_down"]["at"]:
            del stamps["killed"]  # a start that Slurm spoiled has been ended since


# --- what was lost ------------------------------------------------------------------------------------------------


def _lost(recovery: Recovery) -> None:
    """Steps that were made and have to be made again, and how long they had taken."""
    before, after = recovery.from_attempt, recovery.to_attempt
    if before is None or after is None or before.step is None or after.start_step is None:
        return
    recovery.rpo_steps = max(0, before.step - after.start_step)
    recovery.rpo_s = 0.0 if recovery.rpo_steps == 0 else _seconds_since_step(before, after)
    gpus = recovery.training_job.gpus
    if recovery.rpo_s is not None and gpus is not None:
        recovery.rpo_gpu_hours = recovery.rpo_s * gpus / 3600.0


def _seconds_since_step(before: Attempt, after: Attempt) -> float | None:
    """From when `after.start_step` was first made to the last step of `before`; None when no row tells."""
    if before.step_at is None or after.start_step is None:
        return None
    since = _made_at(before, after.start_step)
    return max(0.0, before.step_at.timestamp() - since) if since is not None else None


def _made_at(attempt: Attempt, step: int) -> float | None:
    chunks = MetricChunk.objects.filter(attempt=attempt, name="loss", first_step__lte=step, last_step__gte=step)
    for chunk in chunks.order_by("rank")[:1]:
        at = dict(zip(chunk.steps, chunk.times, strict=True)).get(step)
        if at is not None:
            return float(at)
    saved = Checkpoint.objects.filter(
        training_job=attempt.training_job_id, step=step, generation=attempt.generation, state="committed"
    ).first()
    if saved is not None:
        return saved.committed_at.timestamp() - (saved.durable_s or 0.0)
    started = attempt.first_step_at
    return started.timestamp() if started is not None and step == (attempt.start_step or 0) else None


# --- verification -------------------------------------------------------------------------------------------------


def _verification(recovery: Recovery) -> None:
    """One line for each check, over all ranks; the whole is as good as its worst line, and empty until checked."""
    attempt = recovery.to_attempt
    if attempt is None or not attempt.checks:
        return
    recovery.checks = _lines(attempt.checks)
    found = {line["outcome"] for line in recovery.checks}
    if "FAIL" in found:
        recovery.verification = "FAIL"
    elif recovery.incident.state == "resolved":
        recovery.verification = next((word for word in ("RESHARDED", "DEGRADED") if word in found), "PASS")


def _lines(checks: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """[{"name", "stage", "outcome", "ranks", "agree", "expected", "actual"}]; expected and actual of the worst rank."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    worse = ("PASS", "DEGRADED", "RESHARDED", "FAIL")
    for rank in sorted(checks, key=lambda text: (len(text), text)):
        for stage, result in checks[rank].items():
            for check in result["checks"]:
                line = lines.setdefault((stage, check["name"]), {"outcome": "", "ranks": 0, "agree": 0})
                line["ranks"] += 1
                line["agree"] += check["outcome"] == "PASS"
                if not line["outcome"] or worse.index(check["outcome"]) > worse.index(line["outcome"]):
                    line.update({key: check.get(key) for key in ("outcome", "expected", "actual")})
    return [{"name": name, "stage": stage, **line} for (stage, name), line in lines.items()]
