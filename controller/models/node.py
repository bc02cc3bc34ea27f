"""Nodes, why some are out, which job keeps away from which, and what was probed."""

from django.db import models

from controller.decision.node_hold import NODE_HOLD
from controller.models.cluster import Cluster
from controller.models.columns import json_list, state_check, state_column
from controller.models.training_job import TrainingJob


class Node(models.Model):
    """A node name, as the last good view of Slurm has it. `flags` in Slurm's own spelling."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=255)
    base_state = models.CharField(max_length=32, blank=True, default="")
    flags = json_list()
    reason = models.TextField(blank=True, default="")
    reason_user = models.CharField(max_length=255, blank=True, default="")
    reason_at = models.DateTimeField(null=True, blank=True)
    address = models.CharField(max_length=255, blank=True, default="")
    port = models.PositiveIntegerField(null=True, blank=True)
    boot_at = models.DateTimeField(null=True, blank=True)
    partitions = json_list()
    gres = models.CharField(max_length=255, blank=True, default="")
    jobs = json_list()
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="one_row_per_node")]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class NodeHold(models.Model):
    """Our record of why a node is out. `token` stands in Slurm's Reason, so that only our own drain is ever cleared.

    `adopted`: somebody else's drain was there first; nothing was written and nothing will be cleared.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="holds")
    incident = models.ForeignKey(
        "controller.Incident", null=True, blank=True, on_delete=models.SET_NULL, related_name="holds"
    )
    state = state_column(NODE_HOLD)
    token = models.CharField(max_length=32, unique=True)
    adopted = models.BooleanField(default=False)
    reason = models.TextField()
    slurm_reason = models.TextField(blank=True, default="")
    slurm_reason_user = models.CharField(max_length=255, blank=True, default="")
    slurm_reason_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    state_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=150, blank=True, default="")
    ended_reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node"], condition=models.Q(state__in=NODE_HOLD.live), name="one_live_hold_per_node"
            ),
            state_check(NODE_HOLD, "node_hold_state"),
        ]
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"hold of {self.node_id}: {self.state}"


class Exclusion(models.Model):
    """A node kept from one training job until it expires."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="exclusions")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="exclusions")
    incident = models.ForeignKey("controller.Incident", null=True, on_delete=models.SET_NULL, related_name="exclusions")
    reason = models.TextField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["training_job", "node", "incident"], name="one_exclusion_per_incident")
        ]

    def __str__(self) -> str:
        return f"{self.node_id} excluded from {self.training_job_id}"


class NodeCheck(models.Model):
    """One probe of a node: asked for, and answered or not. `vantage`: `controller`, or the node whose agent probes."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="checks")
    vantage = models.CharField(max_length=255)
    address = models.CharField(max_length=255)
    port = models.PositiveIntegerField()
    asked_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=16, blank=True, default="")

    class Meta:
        indexes = [models.Index(fields=["node", "answered_at"]), models.Index(fields=["vantage", "answered_at"])]

    def __str__(self) -> str:
        return f"probe of {self.node_id} from {self.vantage}: {self.outcome or 'asked'}"
