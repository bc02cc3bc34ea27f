"""The queued job: our hold, its exclusion, the pause after the kill, then StartTime=now and release."""

from typing import Any

from controller.errors import RefusalKind, SlurmRefused
from controller.remediation.handlers.requeue.exclusions import apply_exclusion
from controller.remediation.results import Done, Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind, JobView

# A start sooner than this after the kill fails on some nodes ("job credential revoked").
LAUNCH_PAUSE_S = 2.0
LOOK_S = 0.3
SLURMS_OWN_HOLDS = (HoldKind.LAUNCH_FAILED, HoldKind.REQUEUE_LIMIT)


def until_released(turn: Turn, job: JobView) -> Result:
    if job.state.completing:
        return Wait(LOOK_S, f"job {job.job_id} is COMPLETING")
    if not job.state.pending:
        return _left_the_queue(turn, job)
    held_by_us = _our_hold(turn, job)
    if held_by_us is None:
        return Wait(LOOK_S, f"job {job.job_id} is being held")
    refusal = apply_exclusion(turn, job)
    if refusal is not None:
        return refusal
    if not held_by_us:
        return Refuse(f"job {job.job_id} is held by somebody ({job.reason}); a hold that is not ours is not released")
    pause = turn.progress["killed_at"] + LAUNCH_PAUSE_S - turn.now()
    if pause > 0:
        return Wait(pause, "a launch right after a kill fails")
    return _release(turn, job.job_id)


def _left_the_queue(turn: Turn, job: JobView) -> Result:
    if turn.action.stage == "release":
        turn.note(f"job {job.job_id} was released", released_at=turn.now())
        return Wait(LOOK_S, "released")
    if job.state.terminal:
        return Refuse(f"job {job.job_id} is {job.state.base}: ended while it was queued")
    return Done(f"job {job.job_id} runs again already (restart {job.restarts}), started by somebody else")


def _our_hold(turn: Turn, job: JobView) -> bool | None:
    """True: held by us, or free. False: held by somebody else. None: our hold is on its way."""
    remembered = turn.progress.get("hold")
    if job.hold_kind is None:
        return True if remembered is not None else _hold(turn, job)
    if remembered is not None:
        return bool(remembered == _described(job))
    if not _set_by_us(turn, job):
        return False
    turn.note(f"job {job.job_id} is held by us ({job.reason})", hold=_described(job))
    return True


def _hold(turn: Turn, job: JobView) -> bool | None:
    """It is free now, so a hold that is seen after this stage is the one that we set."""
    turn.stage("hold", f"hold job {job.job_id}")
    turn.port.hold_job(job.job_id)
    return None


def _described(job: JobView) -> dict[str, Any]:
    return {"kind": str(job.hold_kind), "reason": job.reason}


def _set_by_us(turn: Turn, job: JobView) -> bool:
    """Its kind is one that our own writes leave behind, and we had just written."""
    if job.hold_kind in SLURMS_OWN_HOLDS:
        return True  # nobody's wish
    if turn.action.stage == "hold":
        as_owner = job.hold_kind is HoldKind.USER and turn.site.slurm_user == job.user
        return job.hold_kind is HoldKind.ADMIN or as_owner
    return job.hold_kind is HoldKind.REQUEUE_HOLD and turn.progress.get("sends", 0) > 0


def _release(turn: Turn, job_id: str) -> Result:
    """StartTime in the past first: Slurm's fixed requeue delay would keep it for two minutes. The release wakes the
    scheduler. Looked at again right before: the hold must still be the one that we set."""
    job = turn.port.read_job(job_id)
    if job is None or not job.state.pending:
        return Wait(LOOK_S, f"job {job_id} left the queue")
    if job.hold_kind is not None and turn.progress.get("hold") != _described(job):
        return Refuse(f"job {job_id} was held by somebody meanwhile ({job.reason})")
    turn.stage("release", f"start job {job_id} now")
    try:
        turn.port.set_start_now(job_id)
        if job.hold_kind is not None:
            turn.port.release_job(job_id)
    except SlurmRefused as refused:
        if refused.kind not in (RefusalKind.NOT_PENDING, RefusalKind.JOB_FINISHED):
            raise
        return Wait(LOOK_S, str(refused))
    turn.note(f"job {job_id} is released", released_at=turn.now())
    return Wait(LOOK_S, "released")
