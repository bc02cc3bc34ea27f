"""One training job as JSON, for scripts and for the demo's story: what the page shows, without the curve."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from controller.models import Attempt, Checkpoint, Incident, Recovery, TrainingJob
from controller.queries import alarms, asked_saves
from controller.queries.job import commits_of, newest_checkpoints
from controller.queries.phases import TENTHS, phases_of

NEWEST_CHECKPOINTS = 20
NEWEST_LOCAL = 5


def job_json(job: TrainingJob, now: datetime) -> dict[str, Any]:
    """Times are Unix seconds. `incident` is the newest one; `recoveries` has the phases of every one."""
    incidents = list(job.incidents.prefetch_related("evidence", "actions").order_by("-detected_at", "-pk"))
    recoveries = list(Recovery.objects.filter(training_job=job).select_related("from_attempt", "to_attempt"))
    attempts = list(job.attempts.order_by("generation"))
    commits = commits_of(job)
    return {
        "now": now.timestamp(),
        "run_id": job.run_id,
        "name": job.name,
        "owner": job.owner,
        "owner_confirmed": job.owner_confirmed,
        "cluster": job.cluster.name,
        "slurm_job_id": job.slurm_job_id,
        "state": job.state,
        "state_reason": job.state_reason,
        "state_at": _at(job.state_at),
        "created_at": _at(job.created_at),
        "ended_at": _at(job.ended_at),
        "step": job.step,
        "step_at": _at(job.step_at),
        "total_steps": job.total_steps,
        "saving": job.saving or None,
        "attempts": [_attempt(attempt, commits) for attempt in attempts],
        "verification": _verification(attempts),
        "incident": _incident(incidents[0]) if incidents else None,
        "incidents": [{"id": i.pk, "state": i.state, "cause": i.cause, "summary": i.summary} for i in incidents],
        "recoveries": [_recovery(recovery) for recovery in recoveries],
        "checkpoints": [_checkpoint(row) for row in newest_checkpoints(job, NEWEST_CHECKPOINTS, NEWEST_LOCAL)],
    }


def _at(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _attempt(attempt: Attempt, commits: dict[int, list[tuple[int, float]]]) -> dict[str, Any]:
    own = commits.get(attempt.generation, [])
    stamps = ("launched", "rendezvous", "loaded", "warmed_up", "first_step", "first_new_step", "finished", "ended")
    return {
        "generation": attempt.generation,
        "state": attempt.state,
        "outcome": attempt.outcome,
        "outcome_reason": attempt.outcome_reason,
        "slurm_job_id": attempt.slurm_job_id,
        "restart_count": attempt.restart_count,
        "nodes": attempt.nodes,
        "world_size": attempt.world_size,
        "start_step": attempt.start_step,
        "start_folder": attempt.start_folder,
        "step": attempt.step,
        "step_at": _at(attempt.step_at),
        "created_at": _at(attempt.created_at),
        **{f"{name}_at": _at(getattr(attempt, f"{name}_at")) for name in stamps},
        "exits": attempt.exits,
        "asked_saves": asdict(asked_saves.fold(attempt.saving, own, _at(attempt.ended_at))),
        "saving": {name: attempt.saving.get(name) for name in ("left_out", "in_pieces", "linked_bytes", "waived")},
        "early": attempt.early,
        "alarms": [asdict(alarm) for alarm in alarms.of_attempt(attempt, commits)],
    }


def _verification(attempts: list[Attempt]) -> dict[str, Any]:
    """{generation: {rank: {stage: verification}}} of every attempt that verified something."""
    return {str(attempt.generation): attempt.checks for attempt in attempts if attempt.checks}


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.pk,
        "state": incident.state,
        "cause": incident.cause,
        "summary": incident.summary,
        "reason": incident.reason,
        "confidence": incident.confidence,
        "suspects": incident.suspects,
        "fault_at": _at(incident.fault_at),
        "detected_at": _at(incident.detected_at),
        "ended_at": _at(incident.ended_at),
        "ask": incident.ask,
        "evidence": [
            {
                "number": e.number,
                "layer": e.layer,
                "source": e.source,
                "subject": e.subject,
                "code": e.code,
                "raw": e.raw,
            }
            | {"stance": e.stance, "observed_at": _at(e.observed_at), "received_at": _at(e.received_at)}
            for e in incident.evidence.all()
        ],
        "actions": [
            {"id": a.pk, "kind": a.kind, "target": a.target, "state": a.state, "stage": a.stage, "outcome": a.outcome}
            | {"started_at": _at(a.started_at), "ended_at": _at(a.ended_at), "log": a.log}
            for a in incident.actions.all()
        ],
    }


def _recovery(recovery: Recovery) -> dict[str, Any]:
    phases = phases_of(recovery.stamps)
    return {
        "incident": recovery.incident_id,
        "from_generation": recovery.from_attempt.generation if recovery.from_attempt else None,
        "to_generation": recovery.to_attempt.generation if recovery.to_attempt else None,
        "stamps": recovery.stamps,
        "phases": [{"name": p.name, "seconds": p.seconds, "source": p.source} for p in phases.phases],
        "rto_s": None if phases.total is None else phases.total / TENTHS,
        "rpo_steps": recovery.rpo_steps,
        "rpo_s": recovery.rpo_s,
        "verification": recovery.verification,
        "checks": recovery.checks,
    }


def _checkpoint(row: Checkpoint) -> dict[str, Any]:
    return {
        "folder": row.folder,
        "step": row.step,
        "generation": row.generation,
        "tier": row.tier,
        "copies": row.copies,
        "state": row.state,
        "reason": row.reason,
        "committed_at": _at(row.committed_at),
        "verified_at": _at(row.verified_at),
    }
