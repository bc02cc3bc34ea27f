"""The other training jobs of a story: one in each state."""

from __future__ import annotations

from datetime import datetime, timedelta

from controller.models import Cluster, Incident, Recovery, TrainingJob
from tests.dashboard.rows import HOSTILE, attempt, job, points


def neighbours(where: Cluster, owner: str, now: datetime) -> dict[str, TrainingJob]:
    """One training job in each state, by state."""
    found = {}
    plan = [
        ("stopped", "sparse-moe-24b", 12880, 200000, 256),
        ("verifying", "mosaic-7b-longctx", 6079, 20000, 128),
        ("recovering", "protein-lm-3b", 31820, 60000, 64),
        ("training", "code-1b-ablate-a", 71200, 80000, 32),
        ("queued", "code-1b-ablate-c", None, 80000, None),
        ("starting", "speech-enc-1b", None, 400000, 32),
        ("finished", "reward-7b-v2", 15000, 15000, 32),
        ("cancelled", HOSTILE, 2140, 10000, 8),
    ]
    for k, (state, name, step, total, gpus) in enumerate(plan):
        ended = now - timedelta(hours=2) if state in ("finished", "cancelled") else None
        made = job(
            where,
            f"tj-{k:012x}",
            owner,
            now,
            name=name,
            state=state,
            created_at=now - timedelta(hours=12 + k),
            state_at=ended or now - timedelta(minutes=18 + k),
            ended_at=ended,
            step=step,
            step_at=(ended or now - timedelta(seconds=3 + k)) if step else None,
            total_steps=total,
            gpus=gpus,
            view={"reason": "Priority"} if state == "queued" else {},
        )
        found[state] = made
        if state != "queued":
            _attempts(made, state, step, now, ended)
    return found


def _attempts(made: TrainingJob, state: str, step: int | None, now: datetime, ended: datetime | None) -> None:
    names = [f"gpu-{n:04}" for n in range(410, 410 + (made.gpus or 8) // 8)]
    begin = made.created_at + timedelta(minutes=6)
    over = state in ("stopped", "recovering", "finished", "cancelled")
    restarts = 1 if state in ("stopped", "recovering", "verifying", "finished") else 0
    last = None
    for n in range(1, restarts + 2):
        upto = step if step is None or n == restarts + 1 else step * 6 // 10
        start = None if n == 1 or step is None else step // 2
        final = n == restarts + 1
        stop = (made.step_at or now) if final else begin + timedelta(hours=5)
        last = attempt(
            made,
            n,
            begin,
            nodes=names,
            state="ended" if over or not final else "starting" if state == "starting" else "running",
            outcome={"finished": "finished", "cancelled": "cancelled"}.get(state, "node_lost")
            if over or not final
            else "",
            step=upto,
            step_at=stop if upto else None,
            start_step=start,
            ended_at=(ended or stop) if over or not final else None,
            first_step_at=begin + timedelta(seconds=42) if upto else None,
            first_new_step_at=begin + timedelta(seconds=400) if upto else None,
        )
        if upto:
            first = (start or 0) + 1
            length = (stop - begin).total_seconds() - 42
            points(
                last,
                first,
                upto,
                begin + timedelta(seconds=42),
                length / (upto - first),
                stride=max(upto // 200, 1),
                chunk=10,
            )
        begin = stop + timedelta(minutes=2)
    if state in ("stopped", "recovering", "verifying"):
        live = {"stopped": "awaiting_operator", "recovering": "recovering", "verifying": "verifying"}[state]
        hit = last if state != "verifying" else made.attempts.get(generation=1)
        incident = Incident.objects.create(
            cluster=made.cluster,
            training_job=made,
            attempt=hit,
            state=live,
            cause="user_error" if state == "stopped" else "node_lost",
            summary="The program ended with an error" if state == "stopped" else "Node lost: gpu-0419",
            reason="assertion in router.py:212 on two sets of nodes"
            if state == "stopped"
            else "agent silent, no answer",
            confidence=0.8,
            budget="user",
            fault_at=now - timedelta(minutes=19),
            detected_at=now - timedelta(minutes=18),
            ask="a person must look; nothing was requeued" if state == "stopped" else "",
        )
        Recovery.objects.create(
            incident=incident, training_job=made, from_attempt=hit, to_attempt=last if hit != last else None
        )
