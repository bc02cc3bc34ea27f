"""A start that failed as it began, seen while the requeue is being confirmed.

"Job credential revoked" ends a start that came too soon after our own kill: FAILED 1:0 at once. That one is ours, and
is repeated once without blame. Every other failed start is decided anew (`decision.launch`): which host is to blame,
how long to wait, when to stop.
"""

from controller.models import Attempt
from controller.remediation.results import Done, Result, Wait
from controller.remediation.target import LOOK_S, Target
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind

BY_SLURM = frozenset({HoldKind.LAUNCH_FAILED, HoldKind.REQUEUE_LIMIT})
# A batch script that ends within this of its release, without a word of its agents, was never really started.
SPOILED_WITHIN_S = 15.0
# A start this soon after the kill may have met a revoked credential.
TOO_SOON_S = 10.0


def held(target: Target) -> Result:
    """Slurm gave up on the launch and holds the job."""
    return Done(f"job {target.job_id} was requeued, and Slurm could not launch it ({target.reason})")


def ended(turn: Turn, target: Target) -> Result:
    """FAILED right after its release, without a word of its agents, is a spoiled launch and ours to repeat."""
    late = turn.now() - turn.progress["released_at"] > SPOILED_WITHIN_S
    if late or _spoke(turn, target) or not _revoked(turn, target):
        return Done(f"job {target.job_id} was requeued, ran, and is {target.base} by now")
    if turn.progress.get("relaunched"):
        return Done(f"job {target.job_id} was requeued and ended {target.base} twice right after its start")
    text = f"job {target.job_id} ended {target.base} as it began, too soon after the kill: once more"
    forgotten = ("released_at", "running_at", "hold", "answered_at", "sent_at", "queued")
    kept = {key: value for key, value in turn.progress.items() if key not in forgotten}
    turn.restart({**kept, "relaunched": True, "baseline": target.restarts, "killed_at": turn.now()}, text)
    return Wait(LOOK_S, text)


def _spoke(turn: Turn, target: Target) -> bool:
    """An agent of this start was heard: it had begun."""
    job = turn.incident.training_job
    return Attempt.objects.filter(training_job=job, restart_count__gte=target.restarts, agentless=False).exists()


def _revoked(turn: Turn, target: Target) -> bool:
    codes = {(part.state.base, part.exit_code, part.exit_signal) for part in target.parts if part.state.terminal}
    started = target.lead.start_time
    soon = started is None or started.timestamp() - turn.progress["killed_at"] < TOO_SOON_S
    return codes == {("FAILED", 1, 0)} and soon
