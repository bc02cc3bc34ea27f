"""Registration of an array: one row, whatever the number of its tasks (docs/formats.md, section 5)."""

from datetime import datetime

from django.db import transaction

from controller.api.answers import Refused
from controller.api.register import Registration, cluster_named
from controller.models import JobArray, TrainingJob


@transaction.atomic
def register_array(told: Registration, username: str, now: datetime) -> JobArray:
    """The array, made or completed. Refused as `register` refuses, and 409 if the run id is a single job's."""
    if told.user != username:
        raise Refused(403, f"this token is {username}'s, the run is {told.user}'s", "user")
    if TrainingJob.objects.filter(run_id=told.run_id).exists():
        raise Refused(409, "this run is registered as a single job", "array")
    array, _ = JobArray.objects.select_for_update().get_or_create(
        run_id=told.run_id,
        defaults={
            "owner": username,
            "cluster": cluster_named(told.cluster),
            "token_digest": told.token_digest,
            "tasks": told.array,
            "submitted_at": told.submitted_at,
            "argv": told.argv,
            "script": told.script,
            "script_digest": told.script_digest,
            "registered_at": now,
        },
    )
    if array.owner != username:
        raise Refused(403, "this run is another user's", "run_id")
    if (array.token_digest, array.tasks) != (told.token_digest, told.array):
        raise Refused(409, "this array is registered with another token or other tasks", "token_sha256")
    _complete(array, told, now)
    return array


def _complete(array: JobArray, told: Registration, now: datetime) -> None:
    """A later call fills what the first one could not know; it overwrites nothing. Tasks whose agents spoke first did
    not know the array's job id."""
    columns = {"name": told.name, "checkpoint_root": told.checkpoint_root, "slurm_job_id": told.slurm_job_id}
    new: dict[str, str | datetime] = {
        column: value for column, value in columns.items() if value and not getattr(array, column)
    }
    if "slurm_job_id" in new:
        _check_owner(array, told.slurm_job_id)
        new["registered_at"] = now
    for column, value in new.items():
        setattr(array, column, value)
    if new:
        array.save(update_fields=sorted(new))


def _check_owner(array: JobArray, slurm_job_id: str) -> None:
    """What a view of Slurm showed of this array's tasks knows whose they are."""
    shown = TrainingJob.objects.filter(cluster=array.cluster_id, slurm_job_id__startswith=f"{slurm_job_id}_")
    for view in shown.exclude(view={}).values_list("view", flat=True)[:1000]:
        user = view.get("user") if isinstance(view, dict) else None
        if user and user != array.owner:
            raise Refused(403, f"Slurm says that job {slurm_job_id} is another user's", "slurm_job_id")
