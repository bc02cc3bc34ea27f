"""Arrays: one row for a submission whose tasks become training jobs one by one."""

from django.db import models

from controller.models.cluster import Cluster
from controller.models.columns import json_list


class JobArray(models.Model):
    """One submission of an array. Each task is a training job of its own, and gets its row when it starts or when its
    agent speaks: ten thousand tasks that wait are one row here.

    `run_id` is the wrapper's; a task's is that with its number behind it, and the token speaks for these only. `tasks`
    is what sbatch was given (`0-15:4%2`). `registered_at`: when its Slurm job became known here. `ended_at`: Slurm has
    no live record of it any more.
    """

    run_id = models.CharField(max_length=32, unique=True)
    name = models.CharField(max_length=255, blank=True, default="")
    owner = models.CharField(max_length=255)
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="job_arrays")
    token_digest = models.CharField(max_length=80, db_index=True)
    slurm_job_id = models.CharField(max_length=64, blank=True, default="")
    tasks = models.TextField()
    checkpoint_root = models.TextField(blank=True, default="")
    submitted_at = models.DateTimeField()
    argv = json_list()
    script = models.TextField(blank=True, default="")
    script_digest = models.CharField(max_length=80, blank=True, default="")
    registered_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["cluster", "ended_at"])]

    def __str__(self) -> str:
        return f"array {self.name} {self.run_id}"
