"""The outbox: one row for each intended effect."""

from django.db import models

from controller.decision.actions import ACTION
from controller.models.columns import json_dict, json_list, state_check, state_column
from controller.models.incident import Incident


class Action(models.Model):
    """One intended effect. `key` makes it unique; `stage` is committed before the Slurm write that it names.

    `params` is what was decided, `progress` what the handler needs to go on after a crash (baselines, what it wrote),
    `log` what was seen and done: [{"at", "stage", "text"}]. `due_at` is the only timer.
    """

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="actions")
    key = models.CharField(max_length=255, unique=True)
    kind = models.CharField(max_length=32)
    target = models.CharField(max_length=255)
    order = models.PositiveSmallIntegerField()
    optional = models.BooleanField(default=False)
    reason = models.TextField(blank=True, default="")
    state = state_column(ACTION)
    stage = models.CharField(max_length=24, blank=True, default="")
    params = json_dict()
    progress = json_dict()
    log = json_list()
    outcome = models.TextField(blank=True, default="")
    tries = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    lease_owner = models.CharField(max_length=128, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [state_check(ACTION, "action_state")]
        indexes = [models.Index(fields=["state", "due_at"])]
        ordering = ["incident_id", "order", "id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.target}: {self.state}"
