"""A start that failed before it began: tried once more, without the host that failed; twice is a person's.

Two kinds. "Job credential revoked" ends a start that came too soon after our own kill: FAILED 1:0 at once; ours, and
repeated without blame. Slurm's own word ("launch failed requeued held") or any other end at once blames the batch host,
and the next start waits: a job that is sent into a black hole again and again costs everybody.
"""

from datetime import timedelta

from controller.clock import aware
from controller.errors import SlurmError
from controller.models import Attempt, Exclusion, Node
from controller.remediation.results import Done, Refuse, Result, Wait
from controller.remediation.target import LOOK_S, Target
from controller.remediation.turn import Turn
from controller.slurm.views import HoldKind, JobView

BY_SLURM = frozenset({HoldKind.LAUNCH_FAILED, HoldKind.REQUEUE_LIMIT})
# A batch script that ends within this of its release, without a word of its agents, was never really started.
SPOILED_WITHIN_S = 15.0
# A start this soon after the kill may have met a revoked credential.
TOO_SOON_S = 10.0
BACK_OFF_S = 30.0


def ended(turn: Turn, target: Target) -> Result:
    spoke = Attempt.objects.filter(
        training_job=turn.incident.training_job, restart_count__gte=target.restarts, agentless=False
    ).exists()
    late = turn.now() - turn.progress["released_at"] > SPOILED_WITHIN_S
    if spoke or late:
        return Done(f"job {target.job_id} was requeued, ran, and is {target.base} by now")
    if turn.progress.get("relaunched"):
        return Refuse(f"job {target.job_id} ended {target.base} twice right after its start{_where(turn)}")
    text = f"job {target.job_id} ended {target.base} right after its start: once more"
    if _revoked(turn, target):
        return _again(turn, f"{text} (started too soon after the kill)", queued=False, baseline=target.restarts)
    return _again(turn, text, queued=False, baseline=target.restarts, **_blamed(turn, target))


def held(turn: Turn, target: Target) -> Result:
    """Slurm gave up on the launch and holds the job."""
    if HoldKind.REQUEUE_LIMIT in target.holds:
        return Refuse(
            f"job {target.job_id} failed to launch too often ({target.reason}): Slurm holds it until "
            f"somebody has looked and says scontrol release {target.job_id}"
        )
    if turn.progress.get("relaunched"):
        return Refuse(f"job {target.job_id} failed to launch twice ({target.reason}){_where(turn)}")
    text = f"the launch of job {target.job_id} failed and Slurm holds it: once more"
    return _again(turn, text, queued=True, **_blamed(turn, target))


def _revoked(turn: Turn, target: Target) -> bool:
    codes = {(part.state.base, part.exit_code, part.exit_signal) for part in target.parts if part.state.terminal}
    started = target.lead.start_time
    soon = started is not None and started.timestamp() - turn.progress["killed_at"] < TOO_SOON_S
    return codes == {("FAILED", 1, 0)} and soon


def _blamed(turn: Turn, target: Target) -> dict[str, object]:
    """The host that failed is kept from the job, and the next start waits."""
    hosts = _hosts(turn, target)
    incident = turn.incident
    for node in Node.objects.filter(cluster=incident.cluster_id, name__in=hosts):
        Exclusion.objects.get_or_create(
            training_job=incident.training_job,
            node=node,
            incident=incident,
            defaults={
                "reason": f"a launch of job {target.job_id} failed there",
                "created_at": aware(turn.now()),
                "expires_at": aware(turn.now()) + timedelta(seconds=turn.site.policy.limits.exclusion_s),
            },
        )
    return {"launch_hosts": hosts, "launch_after": turn.now() + BACK_OFF_S}


def _hosts(turn: Turn, target: Target) -> list[str]:
    """The batch host of the failed start: as Slurm still shows it, as we saw it start, or as accounting has it."""
    shown = [_host(part) for part in target.parts if _host(part)]
    if shown:
        return shown
    seen = list(turn.progress.get("started_on", ()))[:1]
    return seen or _in_accounting(turn, target)


def _host(part: JobView) -> str:
    return part.batch_host or (part.nodes[0] if part.nodes else "")


def _in_accounting(turn: Turn, target: Target) -> list[str]:
    job = turn.incident.training_job
    try:
        starts = turn.port.read_history(target.lead.job_id, user=job.owner, since=job.created_at - timedelta(minutes=1))
    except SlurmError as error:
        turn.note(f"where it failed is not known: {error}")
        return []
    placed = [start.nodes for start in starts if start.nodes]
    return list(placed[-1][:1]) if placed else []


def _where(turn: Turn) -> str:
    hosts = turn.progress.get("launch_hosts")
    return f"; the first time on {', '.join(hosts)}" if hosts else ""


def _again(turn: Turn, text: str, **progress: object) -> Result:
    """Back to the queue, or to the kill, with what belonged to the spoiled launch forgotten."""
    forgotten = ("released_at", "running_at", "hold", "answered_at")
    kept = {key: value for key, value in turn.progress.items() if key not in forgotten}
    fresh = {"relaunched": True, "sent_at": None, "killed_at": turn.now(), **progress}
    turn.restart({**kept, **fresh}, text)
    return Wait(LOOK_S, text)
