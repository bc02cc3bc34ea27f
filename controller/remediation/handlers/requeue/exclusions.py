"""ExcNodeList: the user's own names, those of this incident and of earlier ones that have not expired."""

from controller.clock import aware
from controller.errors import RefusalKind, SlurmRefused
from controller.models import Exclusion
from controller.remediation.results import Refuse, Result, Wait
from controller.remediation.turn import Turn
from controller.slurm.views import JobView


def apply_exclusion(turn: Turn, job: JobView) -> Result | None:
    """None when the list stands, as read back. Only names that Slurm knows: one unknown name fails the whole list."""
    wanted = _wanted(turn, job)
    if set(wanted) == set(job.excluded_nodes):
        return None
    before = turn.progress.get("excluded_before", list(job.excluded_nodes))
    turn.stage("exclude", f"exclude {', '.join(wanted)} from job {job.job_id}", excluded_before=before)
    try:
        turn.port.exclude_nodes(job.job_id, wanted)
    except SlurmRefused as refused:
        if refused.kind is not RefusalKind.BAD_NODES:
            raise
        unknown = [name for name in wanted if turn.port.read_node(name) is None]
        turn.note(f"Slurm does not know {', '.join(unknown)}", unknown_names=unknown)
        wanted = [name for name in wanted if name not in unknown]
        turn.port.exclude_nodes(job.job_id, wanted)
    seen = turn.port.read_job(job.job_id)
    if seen is None or not seen.state.pending:
        return Wait(0.3, f"job {job.job_id} left the queue")
    missing = set(wanted) - set(seen.excluded_nodes)
    return Refuse(f"Slurm did not take the exclusion of {', '.join(sorted(missing))}") if missing else None


def _wanted(turn: Turn, job: JobView) -> list[str]:
    if turn.progress.get("rolled_back"):
        return list(turn.progress["excluded_before"])
    earlier = Exclusion.objects.filter(training_job=turn.incident.training_job, expires_at__gt=aware(turn.now()))
    ours = set(earlier.values_list("node__name", flat=True)) | set(turn.action.params["exclude"])
    unknown = set(turn.progress.get("unknown_names", ()))
    return sorted((set(job.excluded_nodes) | ours) - unknown)


def roll_back(turn: Turn, job: JobView) -> Result:
    """With our exclusion the job can never run: take our names back, for later restarts too."""
    before = list(turn.progress["excluded_before"])
    text = f"too few nodes are left for job {job.job_id}: our exclusion is taken back"
    turn.stage("exclude", text, rolled_back=True)
    Exclusion.objects.filter(incident=turn.incident).update(expires_at=aware(turn.now()))
    turn.port.exclude_nodes(job.job_id, before, start_time="now")
    return Wait(0.5, text)
