"""The incident, the evidence it rests on, the decision that was made, and what one training job went through."""

from django.db import models

from controller.decision.incident import INCIDENT
from controller.models.cluster import Cluster
from controller.models.columns import json_dict, json_list, state_check, state_column
from controller.models.training_job import Attempt, TrainingJob


class Incident(models.Model):
    """One fault. `cause` is the verdict's class; `summary` and `reason` are what people read. `assessment`: what
    diagnosis said besides (docs/formats.md, section 10, without the evidence); empty where none was asked."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="incidents")
    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="incidents")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.SET_NULL, related_name="incidents")
    state = state_column(INCIDENT)
    cause = models.CharField(max_length=32)
    summary = models.TextField()
    reason = models.TextField()
    confidence = models.FloatField()
    budget = models.CharField(max_length=16)
    suspects = json_list()
    ranks = json_list()
    restarts_before = models.PositiveIntegerField(default=0)
    last_good_at = models.DateTimeField(null=True, blank=True)
    fault_at = models.DateTimeField(null=True, blank=True)
    detected_at = models.DateTimeField()
    acting_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ask = models.TextField(blank=True, default="")
    assessment = json_dict()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["training_job"],
                condition=models.Q(state__in=INCIDENT.live),
                name="one_live_incident_per_training_job",
            ),
            state_check(INCIDENT, "incident_state"),
        ]
        ordering = ["-detected_at"]

    def __str__(self) -> str:
        return f"incident {self.pk}: {self.summary}"


class StateChange(models.Model):
    """The event row of every state change: written in the same transaction as the column, never edited."""

    table = models.CharField(max_length=24)
    row = models.BigIntegerField()
    event = models.CharField(max_length=32)
    old = models.CharField(max_length=24)
    new = models.CharField(max_length=24)
    reason = models.TextField(blank=True, default="")
    by = models.CharField(max_length=150, default="controller")
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["table", "row"])]

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.old} -> {self.new}"


class Evidence(models.Model):
    """A dated sign: never edited. `observed_at` is corrected to the controller's clock. `stance`: accuses, clears,
    soft, cascade or context. `origin`: whose word it is (`decision.evidence`), "" for the controller's older rows.
    `count`: how many like it were collapsed into this one, the last of them at `last_at`. `ref`: the id that it had in
    the facts, "" for what a detector said in its own words. `late`: it came after the incident was opened."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="evidence")
    number = models.PositiveIntegerField()
    layer = models.CharField(max_length=32)
    source = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    code = models.CharField(max_length=128)
    raw = models.TextField()
    stance = models.CharField(max_length=12, default="accuses")
    origin = models.CharField(max_length=16, blank=True, default="")
    node = models.CharField(max_length=255, blank=True, default="")
    rank = models.BigIntegerField(null=True, blank=True)
    count = models.PositiveBigIntegerField(default=1)
    last_at = models.DateTimeField(null=True, blank=True)
    ref = models.CharField(max_length=64, blank=True, default="")
    late = models.BooleanField(default=False)
    observed_at = models.DateTimeField()
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["incident", "number"], name="evidence_number")]
        ordering = ["number"]

    def __str__(self) -> str:
        return f"{self.number} {self.raw[:60]}"


class Decision(models.Model):
    """What was decided, on which slice of facts, under which policy, by which code: enough to replay it."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="decisions")
    incident = models.ForeignKey(Incident, null=True, on_delete=models.CASCADE, related_name="decisions")
    at = models.DateTimeField()
    facts = json_dict()
    cluster_facts = json_dict()
    policy_digest = models.CharField(max_length=80)
    code_version = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16)
    reason = models.TextField()
    notes = json_list()

    def __str__(self) -> str:
        return f"decision {self.pk}: {self.outcome}"


class Recovery(models.Model):
    """What one training job went through because of an incident.

    `stamps`: {name: {"at": unix seconds, "source": "table:id:column"}}; a missing stamp is absent, never interpolated.
    """

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="recoveries")
    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="recoveries")
    from_attempt = models.ForeignKey(Attempt, null=True, on_delete=models.SET_NULL, related_name="+")
    to_attempt = models.ForeignKey(Attempt, null=True, on_delete=models.SET_NULL, related_name="+")
    stamps = json_dict()
    rpo_steps = models.BigIntegerField(null=True, blank=True)
    rpo_s = models.FloatField(null=True, blank=True)
    rpo_gpu_hours = models.FloatField(null=True, blank=True)
    verification = models.CharField(max_length=16, blank=True, default="")
    checks = json_list()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["incident", "training_job"], name="one_recovery_per_incident_and_job")
        ]

    def __str__(self) -> str:
        return f"recovery of {self.training_job_id} from incident {self.incident_id}"
