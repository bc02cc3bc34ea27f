"""The queued job: our hold, the pause after the kill, then at one go its exclusion, StartTime=now and release.

At one go: each change of a job asks for a round of Slurm's main scheduler, and rounds are three seconds apart. An
exclusion written during the pause gets the round that the release needs, and the job starts two seconds later (tried).
"""

from typing import Any

from controller.errors import RefusalKind, SlurmRefused
from controller.remediation import survivors
from controller.remediation.handlers.requeue.exclusions import apply_exclusion
from controller.remediation.results import Done, Refuse, Result, Wait
from controller.remediation.target import LOOK_S, Target, of
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind

# A start sooner than this after the kill fails on some nodes ("job credential revoked").
LAUNCH_PAUSE_S = 2.0
NOBODYS_WISH = frozenset({HoldKind.LAUNCH_FAILED, HoldKind.REQUEUE_LIMIT})
WHOSE = {
    HoldKind.USER: "its owner",
    HoldKind.ADMIN: "an operator or administrator",
    HoldKind.RESERVATION_DELETED: "Slurm, since its reservation was deleted",
}


def until_released(turn: Turn, target: Target) -> Result:
    if target.completing:
        return Wait(LOOK_S, f"job {target.job_id} is COMPLETING")
    if not target.pending:
        return _left_the_queue(turn, target)
    held_by_us = _our_hold(turn, target)
    if held_by_us is None:
        return Wait(LOOK_S, f"job {target.job_id} is being held")
    pause = turn.progress["killed_at"] + LAUNCH_PAUSE_S - turn.now()
    if pause > 0:
        return Wait(pause, "a launch right after a kill fails")
    refusal = apply_exclusion(turn, target)
    if refusal is not None:
        return refusal
    if not held_by_us:
        return Refuse(f"{held_by(target)}; a hold that is not ours is not released")
    return _release(turn, target.job_id)


def held_by(target: Target) -> str:
    who = ", ".join(WHOSE.get(kind, "somebody") for kind in target.holds)
    return f"job {target.job_id} is held by {who} ({target.reason})"


def _left_the_queue(turn: Turn, target: Target) -> Result:
    if turn.action.stage == "release":
        turn.note(f"job {target.job_id} was released", released_at=turn.now())
        return Wait(LOOK_S, "released")
    if target.terminal:
        return Refuse(f"job {target.job_id} is {target.base}: ended while it was queued")
    if not target.running:
        return Wait(LOOK_S, f"job {target.job_id} is {target.lead.state.raw}")
    return Done(f"job {target.job_id} runs again already (restart {target.restarts}), started by somebody else")


def _our_hold(turn: Turn, target: Target) -> bool | None:
    """True: held by us, or free. False: held by somebody else. None: our hold is on its way."""
    remembered = turn.progress.get("hold")
    if not target.holds:
        return True if remembered is not None else _hold(turn, target)
    if remembered is not None:
        return bool(remembered == _described(target))
    if not _set_by_us(turn, target):
        return False
    turn.note(f"job {target.job_id} is held by us ({target.reason})", hold=_described(target))
    return True


def _hold(turn: Turn, target: Target) -> bool | None:
    """It is free now, so a hold that is seen after this stage is the one that we set."""
    turn.stage("hold", f"hold job {target.job_id}")
    turn.port.hold_job(target.job_id)
    return None


def _described(target: Target) -> dict[str, Any]:
    return {"kind": "+".join(target.holds), "reason": target.reason}


def _set_by_us(turn: Turn, target: Target) -> bool:
    """Its kind is one that our own writes leave behind, and we had just written."""
    return all(_left_by_us(turn, target, kind) for kind in target.holds)


def _left_by_us(turn: Turn, target: Target, kind: HoldKind) -> bool:
    if kind in NOBODYS_WISH:
        return True
    if turn.action.stage == "hold":
        as_owner = kind is HoldKind.USER and turn.site.slurm_user == target.lead.user
        return kind is HoldKind.ADMIN or as_owner
    return kind is HoldKind.REQUEUE_HOLD and turn.progress.get("sends", 0) > 0


def _release(turn: Turn, job_id: str) -> Result:
    """StartTime in the past first: Slurm's fixed requeue delay would keep it for two minutes. The release wakes the
    scheduler. Looked at again right before: the hold must still be the one that we set."""
    job = turn.port.read_job(job_id)
    target = of(turn, job) if job is not None else None
    if not isinstance(target, Target) or not target.pending:
        return Wait(LOOK_S, f"job {job_id} left the queue")
    if target.holds and turn.progress.get("hold") != _described(target):
        return Refuse(f"{held_by(target)} meanwhile")
    survivors.settle(turn, target)
    turn.stage("release", f"start job {job_id} now")
    try:
        turn.port.set_start_now(job_id)
        if target.holds:
            turn.port.release_job(job_id)
    except SlurmRefused as refused:
        if refused.kind not in (RefusalKind.NOT_PENDING, RefusalKind.JOB_FINISHED):
            raise
        return Wait(LOOK_S, str(refused))
    turn.note(f"job {job_id} is released", released_at=turn.now())
    return Wait(LOOK_S, "released")
