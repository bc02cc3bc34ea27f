"""Until Slurm shows the job queued again: by its own hand (after DOWN), or by one requeue of ours."""

from typing import Any

from controller.decision import actions
from controller.errors import RefusalKind, SlurmRefused, SlurmUnavailable
from controller.models import Action
from controller.remediation import survivors
from controller.remediation.handlers.requeue import forbidden
from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.target import LOOK_S, Target
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind

# A timed-out or interrupted requeue may take effect late: this long after Slurm answers again, it did not.
LATE_EFFECT_S = 5.0
MAX_SENDS = 3
# From here on a person reads what it waits for, and it is looked at less often.
STUCK_S = 5.0
LONG_S = 60.0
PERSONS_WILL = {"CANCELLED": "was cancelled", "COMPLETED": "is finished", "DEADLINE": "passed its deadline"}
HELD_BY_SLURM = frozenset({HoldKind.LAUNCH_FAILED, HoldKind.REQUEUE_LIMIT})


def until_queued(turn: Turn, target: Target) -> Result:
    baseline = turn.progress.get("baseline", turn.action.params["restarts_before"])
    if target.completing:
        return _completing(turn, target)
    if target.restarts > baseline or (target.pending and HELD_BY_SLURM.intersection(target.holds)):
        return _queued(turn, target)
    if target.base in PERSONS_WILL:
        return Refuse(f"job {target.job_id} {PERSONS_WILL[target.base]}")
    if any(part.state.suspended for part in target.parts):
        return Refuse(f"job {target.job_id} is suspended by somebody")
    if target.pending:
        return _pending_unexpected(turn, target, baseline)
    why = forbidden.why(turn, target)
    return Refuse(why) if why else _send(turn, target)


def _completing(turn: Turn, target: Target) -> Result:
    """A phase of its own: ranks that ignore SIGTERM keep it for KillWait, a stuck device for longer. It has no limit
    of ours: only Slurm knows when the processes are gone."""
    text = f"job {target.job_id} is COMPLETING"
    if turn.action.stage != "settle":
        turn.stage("settle", text, killed_at=turn.progress.get("killed_at") or _killed_at(turn))
    lasted = turn.now() - (turn.progress.get("killed_at") or turn.now())
    if lasted < STUCK_S:
        return Wait(LOOK_S, text)
    if "kill_limits" not in turn.progress:
        config = turn.port.read_cluster().config
        limits = ", ".join(f"{key} {config[key]}" for key in ("KillWait", "UnkillableStepTimeout") if key in config)
        turn.note(f"{text} for {lasted:.0f} s", kill_limits=f" ({limits})" if limits else "")
    where = f" on {', '.join(target.nodes)}" if target.nodes else ""
    why = f"{text} for {lasted:.0f} s: processes{where} have not ended{turn.progress['kill_limits']}"
    return Wait(LOOK_S if lasted < LONG_S else 2.0, why)


def _killed_at(turn: Turn) -> float:
    """When its processes were told to end, at the latest: our DOWN as it was confirmed, or else now. A requeue that
    was answered has said it already; one that was not may have taken effect long after it was sent."""
    holds = Action.objects.filter(incident=turn.incident, kind=actions.HOLD_NODE)
    downs = [action.progress["down_at"] for action in holds if action.progress.get("down_at")]
    return float(max(downs, default=turn.now()))


def _queued(turn: Turn, target: Target) -> Result:
    now = turn.now()
    stamps: dict[str, Any] = {
        "killed_at": turn.progress.get("killed_at") or _killed_at(turn),
        "settled_at": turn.progress.get("settled_at") or now,
        "requeued_at": turn.progress.get("requeued_at") or now,
    }
    text = f"Slurm shows job {target.job_id} queued again, restart {target.restarts}"
    turn.stage("settle", text, queued=True, queued_as=target.restarts, **stamps)
    return Wait(0.0, text)


def _pending_unexpected(turn: Turn, target: Target, baseline: int) -> Result:
    """Pending without having restarted: somebody acts on it. Slurm may be a moment behind itself, so look twice."""
    since = turn.progress.get("pending_since")
    if since is None:
        turn.note(f"job {target.job_id} is PENDING with {target.restarts} restarts", pending_since=turn.now())
    elif turn.now() - since > LATE_EFFECT_S and target.restarts == 0:
        return Refuse(f"job {target.job_id} has not been started: there is nothing to requeue")
    elif turn.now() - since > LATE_EFFECT_S:
        return Refuse(
            f"job {target.job_id} is pending with {target.restarts} restarts; it had {baseline} when it was hit"
        )
    return Wait(LOOK_S, f"job {target.job_id} is pending, not restarted")


def _send(turn: Turn, target: Target) -> Result:
    sent_at, sends = turn.progress.get("sent_at"), turn.progress.get("sends", 0)
    if sent_at is not None:
        waiting = _wait_for_late_effect(turn, target)
        if waiting is not None:
            return waiting
    if sends >= MAX_SENDS:
        return Refuse(f"job {target.job_id} is {target.base} after {sends} requeues")
    survivors.reserve(turn, target)
    text = f"requeue job {target.job_id} ({target.base})"
    turn.stage("requeue", text, sent_at=turn.now(), sends=sends + 1, answered_at=None)
    try:
        # A person's hold outlives a plain requeue under its own name; a requeue with hold would hide it.
        turn.port.requeue_job(target.job_id, hold=not target.holds)
    except SlurmRefused as refused:
        turn.note(f"refused: {refused}", sent_at=None)
        if refused.kind is RefusalKind.NOT_REQUEUEABLE:
            return Refuse(forbidden.no_requeue(turn, target))
        if refused.kind not in (RefusalKind.ALREADY_PENDING, RefusalKind.INVALID_JOB):
            raise  # an id that Slurm does not know is looked at again, and explained
    except SlurmUnavailable as away:
        if not away.outcome_unknown:
            turn.note(f"not sent: {away}", sent_at=None)
        raise
    else:
        turn.note(f"Slurm took the requeue of job {target.job_id}", killed_at=turn.progress["sent_at"])
    return Wait(LOOK_S, f"requeue of job {target.job_id} sent")


def _wait_for_late_effect(turn: Turn, target: Target) -> Result | None:
    """None when the requeue that was sent has had its time while Slurm answered, and did nothing."""
    answered = turn.progress.get("answered_at")
    if answered is None:
        answered = turn.now()
        turn.note(f"Slurm answers: job {target.job_id} is {target.base}", answered_at=answered)
    if turn.now() - answered < LATE_EFFECT_S:
        return Wait(LOOK_S, "a requeue was sent; whether it takes effect is not known yet")
    return None
