"""Until Slurm shows the job queued again: by its own hand (after DOWN), or by one requeue of ours."""

from controller.decision import actions
from controller.errors import RefusalKind, SlurmRefused, SlurmUnavailable
from controller.models import Action
from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm.views import JobView

LOOK_S = 0.3
# A timed-out or interrupted requeue may take effect late: this long after Slurm answers again, it did not.
LATE_EFFECT_S = 5.0
MAX_SENDS = 3
PERSONS_WILL = {"CANCELLED": "was cancelled", "COMPLETED": "is finished", "DEADLINE": "passed its deadline"}


def until_queued(turn: Turn, job: JobView) -> Result:
    baseline = turn.progress.get("baseline", turn.action.params["restarts_before"])
    if job.state.completing:
        return _completing(turn, job)
    if job.restarts > baseline:
        return _queued(turn, job)
    if job.state.base in PERSONS_WILL:
        return Refuse(f"job {job.job_id} {PERSONS_WILL[job.state.base]}")
    if job.state.suspended:
        return Refuse(f"job {job.job_id} is suspended by somebody")
    if job.state.pending:
        return _pending_unexpected(turn, job, baseline)
    if not job.requeue or not job.batch:
        return Refuse(f"job {job.job_id} forbids requeueing")
    return _send(turn, job)


def _completing(turn: Turn, job: JobView) -> Result:
    """A phase of its own: ranks that ignore SIGTERM keep it for KillWait, a stuck device for longer."""
    if turn.action.stage != "settle":
        killed_at = turn.progress.get("killed_at") or _killed_at(turn)
        turn.stage("settle", f"job {job.job_id} is COMPLETING", killed_at=killed_at)
    return Wait(LOOK_S, f"job {job.job_id} is COMPLETING")


def _killed_at(turn: Turn) -> float:
    """When its processes were told to end, at the latest: our DOWN as it was confirmed, or else now. A requeue that
    was answered has said it already; one that was not may have taken effect long after it was sent."""
    holds = Action.objects.filter(incident=turn.incident, kind=actions.HOLD_NODE)
    downs = [action.progress["down_at"] for action in holds if action.progress.get("down_at")]
    return float(max(downs, default=turn.now()))


def _queued(turn: Turn, job: JobView) -> Result:
    now = turn.now()
    stamps = {
        "killed_at": turn.progress.get("killed_at") or _killed_at(turn),
        "settled_at": turn.progress.get("settled_at") or now,
        "requeued_at": turn.progress.get("requeued_at") or now,
    }
    text = f"Slurm shows job {job.job_id} queued again, restart {job.restarts}"
    turn.stage("settle", text, queued=True, queued_as=job.restarts, **stamps)
    return Wait(0.0, text)


def _pending_unexpected(turn: Turn, job: JobView, baseline: int) -> Result:
    """Pending without having restarted: somebody acts on it. Slurm may be a moment behind itself, so look twice."""
    since = turn.progress.get("pending_since")
    if since is None:
        turn.note(f"job {job.job_id} is PENDING with {job.restarts} restarts", pending_since=turn.now())
    elif turn.now() - since > LATE_EFFECT_S:
        return Refuse(f"job {job.job_id} is pending with {job.restarts} restarts; it had {baseline} when it was hit")
    return Wait(LOOK_S, f"job {job.job_id} is pending, not restarted")


def _send(turn: Turn, job: JobView) -> Result:
    sent_at, sends = turn.progress.get("sent_at"), turn.progress.get("sends", 0)
    if sent_at is not None:
        waiting = _wait_for_late_effect(turn, job)
        if waiting is not None:
            return waiting
    if sends >= MAX_SENDS:
        return Refuse(f"job {job.job_id} is {job.state.base} after {sends} requeues")
    text = f"requeue job {job.job_id} ({job.state.base})"
    turn.stage("requeue", text, sent_at=turn.now(), sends=sends + 1, answered_at=None)
    try:
        turn.port.requeue_job(job.job_id, hold=True)
    except SlurmRefused as refused:
        turn.note(f"refused: {refused}", sent_at=None)
        if refused.kind is not RefusalKind.ALREADY_PENDING:
            raise
    except SlurmUnavailable as away:
        if not away.outcome_unknown:
            turn.note(f"not sent: {away}", sent_at=None)
        raise
    else:
        turn.note(f"Slurm took the requeue of job {job.job_id}", killed_at=turn.progress["sent_at"])
    return Wait(LOOK_S, f"requeue of job {job.job_id} sent")


def _wait_for_late_effect(turn: Turn, job: JobView) -> Result | None:
    """None when the requeue that was sent has had its time while Slurm answered, and did nothing."""
    answered = turn.progress.get("answered_at")
    if answered is None:
        answered = turn.now()
        turn.note(f"Slurm answers: job {job.job_id} is {job.state.base}", answered_at=answered)
    if turn.now() - answered < LATE_EFFECT_S:
        return Wait(LOOK_S, "a requeue was sent; whether it takes effect is not known yet")
    return None
