"""Released: seen to run, or to wait for resources. A launch that Slurm spoiled is tried once more (`launch`)."""

from controller.remediation.handlers.requeue import exclusions, launch
from controller.remediation.handlers.requeue.queue import held_by
from controller.remediation.results import Done, Result, Wait
from controller.remediation.target import LOOK_S, Target
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind

# Running this long is a live batch step; a spoiled launch ends within a fraction of a second.
RUNNING_S = 1.0
SETTLED_S = 5.0
# Without a reason no scheduler has looked at it yet: the backfill scheduler does so every half minute.
UNSEEN_S = 45.0


def until_running(turn: Turn, target: Target) -> Result:
    if target.running:
        return _running(turn, target)
    if target.terminal and target.base not in ("COMPLETED", "CANCELLED"):
        return launch.ended(turn, target)
    if target.terminal:
        return Done(f"job {target.job_id} was requeued and is {target.base} by now")
    if not target.pending or target.completing:
        return Wait(LOOK_S, f"job {target.job_id} is {target.lead.state.raw}")
    if target.holds:
        return _held(turn, target)
    stuck = any(part.reason == "BadConstraints" for part in target.parts)
    if stuck and exclusions.in_force(turn) and not turn.progress.get("rolled_back"):
        return exclusions.roll_back(turn, target)
    return _waiting(turn, target)


def _running(turn: Turn, target: Target) -> Result:
    since = turn.progress.get("running_at")
    if since is None:
        since = turn.now()
        text = f"job {target.job_id} runs on {', '.join(target.nodes)}"
        turn.note(text, running_at=since)
    if turn.now() - since < RUNNING_S:
        return Wait(LOOK_S, f"job {target.job_id} runs")
    where = ", ".join(target.nodes)
    return Done(f"job {target.job_id} runs again on {where} (restart {target.restarts}){exclusions.words(turn)}")


def _held(turn: Turn, target: Target) -> Result:
    if launch.BY_SLURM.intersection(target.holds):
        return launch.held(target)
    if turn.progress.get("rolled_back") and target.holds == (HoldKind.ADMIN,) and not turn.progress.get("revived"):
        # Over-excluded, a job loses its priority; taken back, it can look held by an administrator. Nobody wished it.
        turn.stage("release", f"job {target.job_id} lost its priority to our exclusion", revived=True)
        turn.port.release_job(target.job_id)
        return Wait(LOOK_S, f"job {target.job_id} is released again")
    return Done(f"job {target.job_id} was requeued; since then {held_by(target)}")


def _waiting(turn: Turn, target: Target) -> Result:
    """Requeued and released: what it waits for is Slurm's to give. The first reason is often a stale one."""
    lasted = turn.now() - turn.progress["released_at"]
    if lasted < SETTLED_S or (not target.reason and lasted < UNSEEN_S):
        return Wait(LOOK_S, f"job {target.job_id} is pending ({target.reason or 'not looked at yet'})")
    why = target.reason or "Slurm gives no reason"
    text = f"job {target.job_id} is queued again (restart {target.restarts}) and waits: {why}"
    return Done(text + exclusions.words(turn))
