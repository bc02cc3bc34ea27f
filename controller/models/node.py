"""Nodes and the machines behind their names, why some are out, which job keeps away from which, what was probed."""

from django.db import models

from controller.decision.node_hold import NODE_HOLD
from controller.models.cluster import Cluster
from controller.models.columns import json_dict, json_list, state_check, state_column
from controller.models.training_job import TrainingJob


class Machine(models.Model):
    """The hardware behind a node name: history follows it. `facts`: its identity as `decision.hardware` compares it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="machines")
    facts = json_dict()
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"machine {self.pk}"


class Node(models.Model):
    """A node name, as the last good view of Slurm has it. `flags` in Slurm's own spelling.

    A view that does not show the node leaves `seen_at` behind `Cluster.view_at`: it is unknown then, not gone. `jobs`
    are the ids of what runs there, `tenants` the same with their people: [{"job", "user", "until", "why"}].
    `excused_at`: when an expected silence (reboot, power, maintenance) was last seen to be over. `rebooted_at`: when it
    was last seen to have booted again. `boot_id`: what its agents said last. `machine`: None while too little is known.
    """

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
    tenants = json_list()
    cpus = models.PositiveIntegerField(default=0)
    memory_mb = models.PositiveBigIntegerField(default=0)
    instance_id = models.CharField(max_length=255, blank=True, default="")
    boot_id = models.CharField(max_length=64, blank=True, default="")
    machine = models.ForeignKey(Machine, null=True, blank=True, on_delete=models.SET_NULL, related_name="nodes")
    excused_at = models.DateTimeField(null=True, blank=True)
    rebooted_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="one_row_per_node")]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class NodeEvent(models.Model):
    """What happened to a node, by whose hand ever: drained, returned, down, rebooted, swapped. Never edited."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)
    text = models.TextField()

    class Meta:
        indexes = [models.Index(fields=["node", "-at"]), models.Index(fields=["kind", "at"])]
        ordering = ["-at", "-pk"]

    def __str__(self) -> str:
        return f"{self.node_id} {self.kind}: {self.text[:60]}"


class NodeHold(models.Model):
    """Our record of why a node is out. `token` stands in Slurm's Reason, so that only our own drain is ever cleared.

    `adopted`: the drain is somebody else's; nothing was written and nothing will be cleared. `sticky`: only a person
    clears it. `machine`: the hardware that it was made for. `rebooted_at`: the node's, when it was last seen out.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="holds")
    incident = models.ForeignKey(
        "controller.Incident", null=True, blank=True, on_delete=models.SET_NULL, related_name="holds"
    )
    state = state_column(NODE_HOLD)
    token = models.CharField(max_length=32, unique=True)
    adopted = models.BooleanField(default=False)
    sticky = models.BooleanField(default=False)
    machine = models.ForeignKey(Machine, null=True, blank=True, on_delete=models.SET_NULL, related_name="holds")
    rebooted_at = models.DateTimeField(null=True, blank=True)
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
    """A node kept from one training job until it expires. `machine`: the hardware that it was made for."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="exclusions")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="exclusions")
    incident = models.ForeignKey("controller.Incident", null=True, on_delete=models.SET_NULL, related_name="exclusions")
    machine = models.ForeignKey(Machine, null=True, blank=True, on_delete=models.SET_NULL, related_name="exclusions")
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
