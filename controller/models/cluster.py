"""The cluster: who holds its lease, how old the last good view of Slurm is, and what is switched off."""

from django.db import models

from controller.models.columns import json_dict, json_list


class Cluster(models.Model):
    """One Slurm cluster. `mode` empty means: the policy's. One process holds the lease and decides for it.

    `swept_at`: the last sweep. `watching_since`: since when sweeps follow each other without a gap; silence is judged
    from there on. `private_data`: Slurm's PrivateData: what is not shown may merely be hidden. `next_job_id`: goes back
    when Slurm lost its state, and the cluster falls to observe. `scheduler`: what slurm.conf says about starting jobs
    again. `view_mark`: drawn anew for each view that is stored (`snapshot.last_view`).
    """

    name = models.CharField(max_length=255, unique=True)
    mode = models.CharField(max_length=8, blank=True, default="")
    mode_reason = models.TextField(blank=True, default="")
    paused_reason = models.TextField(blank=True, default="")
    paused_by = models.CharField(max_length=150, blank=True, default="")
    breaker_open_until = models.DateTimeField(null=True, blank=True)
    lease_owner = models.CharField(max_length=128, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    swept_at = models.DateTimeField(null=True, blank=True)
    watching_since = models.DateTimeField(null=True, blank=True)
    next_job_id = models.BigIntegerField(null=True, blank=True)
    slurm_version = models.CharField(max_length=64, blank=True, default="")
    view_at = models.DateTimeField(null=True, blank=True)
    view_mark = models.CharField(max_length=16, blank=True, default="")
    view_error = models.TextField(blank=True, default="")
    view_error_at = models.DateTimeField(null=True, blank=True)
    nodes_total = models.PositiveIntegerField(default=0)
    private_data = json_list()
    scheduler = json_dict()
    rights = json_dict()

    def __str__(self) -> str:
        return self.name
