"""Tasks of arrays become training jobs when they start: as Slurm shows them, or as their agents speak."""

from datetime import datetime, timedelta

from controller.models import Cluster, JobArray, TrainingJob
from controller.slurm.views import ClusterView, JobView
from worker_hooks.protocol.arrays import parse_tasks
from worker_hooks.protocol.identity import task_run_id

# A view that was read while the submission was under way does not show it yet.
SHOWN_AFTER = timedelta(seconds=60)
NAME_CHARS = 240


def has_task(array: JobArray, task: int) -> bool:
    """A list of tasks in a form that only a newer Slurm knows counts as any."""
    tasks = parse_tasks(array.tasks)
    return tasks is None or task in tasks


def task_job(array: JobArray, task: int, now: datetime) -> TrainingJob:
    """The task's row, not saved."""
    return TrainingJob(
        run_id=task_run_id(array.run_id, task),
        name=f"{array.name[:NAME_CHARS]} [{task}]",
        owner=array.owner,
        cluster_id=array.cluster_id,
        array=array,
        token_digest=array.token_digest,
        slurm_job_id=f"{array.slurm_job_id}_{task}" if array.slurm_job_id else "",
        checkpoint_root=array.checkpoint_root,
        state_at=now,
        created_at=now,
    )


def follow(cluster: Cluster, view: ClusterView) -> None:
    """Rows for the tasks that have started since the last view; an array with nothing left to start is closed, because
    Slurm uses job ids again. Runs inside the transaction that stores the view."""
    arrays = list(JobArray.objects.filter(cluster=cluster, ended_at=None).exclude(slurm_job_id=""))
    if not arrays:
        return
    records: dict[str, list[JobView]] = {}
    for job in view.jobs.values():
        if job.array_job_id is not None:
            records.setdefault(str(job.array_job_id), []).append(job)
    for array in arrays:
        own = [job for job in records.get(array.slurm_job_id, []) if job.user == array.owner]
        _add_started(array, own, view.jobs_at)
        if not any(job.state.live for job in own) and _would_show(array, view):
            array.ended_at = view.jobs_at
            array.save(update_fields=["ended_at"])


def _add_started(array: JobArray, own: list[JobView], at: datetime) -> None:
    started = [job.array_task_id for job in own if job.array_task_id is not None and (job.nodes or job.restarts)]
    if not started:
        return
    known = set(TrainingJob.objects.filter(array=array).values_list("run_id", flat=True))
    new = (task_job(array, task, at) for task in started if task_run_id(array.run_id, task) not in known)
    # An agent may have spoken at the same moment: its row is as good.
    TrainingJob.objects.bulk_create(new, batch_size=100, ignore_conflicts=True)


def _would_show(array: JobArray, view: ClusterView) -> bool:
    return "jobs" not in view.private_data and view.jobs_at > array.registered_at + SHOWN_AFTER
