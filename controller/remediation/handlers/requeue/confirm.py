"""Released: seen to run, or to wait for resources. A launch that Slurm spoiled is tried once more."""

from controller.models import Attempt
from controller.remediation.handlers.requeue.exclusions import roll_back
from controller.remediation.results import Done, Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind, JobView

LOOK_S = 0.3
# Running this long is a live batch step; a spoiled launch ends within a fraction of a second.
RUNNING_S = 1.0
SETTLED_S = 5.0
SPOILED_WITHIN_S = 15.0


def until_running(turn: Turn, job: JobView) -> Result:
    if job.state.running:
        return _running(turn, job)
    if job.state.terminal and job.state.base not in ("COMPLETED", "CANCELLED"):
        return _ended(turn, job)
    if job.state.terminal:
        return Done(f"job {job.job_id} was requeued and is {job.state.base} by now")
    if not job.state.pending:
        return Wait(LOOK_S, f"job {job.job_id} is {job.state.raw}")
    if job.hold_kind is not None:
        return _held(turn, job)
    if job.reason == "BadConstraints" and "excluded_before" in turn.progress and not turn.progress.get("rolled_back"):
        return roll_back(turn, job)
    return _waiting(turn, job)


def _running(turn: Turn, job: JobView) -> Result:
    since = turn.progress.get("running_at")
    if since is None:
        since = turn.now()
        turn.note(f"job {job.job_id} runs on {', '.join(job.nodes)}", running_at=since)
    if turn.now() - since < RUNNING_S:
        return Wait(LOOK_S, f"job {job.job_id} runs")
    return Done(f"job {job.job_id} runs again on {', '.join(job.nodes)} (restart {job.restarts}){_note(turn)}")


def _waiting(turn: Turn, job: JobView) -> Result:
    """Requeued and released: what it waits for is Slurm's to give. The first reason is often a stale one."""
    if turn.now() - turn.progress["released_at"] < SETTLED_S:
        return Wait(LOOK_S, f"job {job.job_id} is pending ({job.reason})")
    return Done(f"job {job.job_id} is queued again (restart {job.restarts}) and waits: {job.reason}{_note(turn)}")


def _note(turn: Turn) -> str:
    return "; without our exclusion, which left too few nodes" if turn.progress.get("rolled_back") else ""


def _held(turn: Turn, job: JobView) -> Result:
    if job.hold_kind is not HoldKind.LAUNCH_FAILED:
        return Done(f"job {job.job_id} was requeued; somebody holds it since ({job.reason})")
    if turn.progress.get("relaunched"):
        return Refuse(f"job {job.job_id} failed to launch twice ({job.reason})")
    return _again(turn, f"the launch of job {job.job_id} failed and Slurm holds it: once more", queued=True)


def _ended(turn: Turn, job: JobView) -> Result:
    """FAILED right after its release, without a word of its agents, is a spoiled launch and ours to repeat."""
    spoke = Attempt.objects.filter(
        training_job=turn.incident.training_job, restart_count__gte=job.restarts, agentless=False
    ).exists()
    late = turn.now() - turn.progress["released_at"] > SPOILED_WITHIN_S
    if spoke or late:
        return Done(f"job {job.job_id} was requeued, ran, and is {job.state.base} by now")
    if turn.progress.get("relaunched"):
        return Refuse(f"job {job.job_id} ended {job.state.base} twice right after its start")
    text = f"job {job.job_id} ended {job.state.base} right after its start: once more"
    return _again(turn, text, queued=False, baseline=job.restarts)


def _again(turn: Turn, text: str, **progress: object) -> Result:
    """Back to the queue, or to the kill, with what belonged to the spoiled launch forgotten."""
    kept = {k: v for k, v in turn.progress.items() if k not in ("released_at", "running_at", "hold", "answered_at")}
    turn.restart({**kept, "relaunched": True, "sent_at": None, "killed_at": turn.now(), **progress}, text)
    return Wait(LOOK_S, text)
