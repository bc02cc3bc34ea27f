"""Checkpoints, as the agents reported them. The truth is in the checkpoint root."""

from django.db import models

from controller.models.training_job import TrainingJob
from worker_hooks.protocol.tiers import LOCAL, SHARED


class Checkpoint(models.Model):
    """One checkpoint folder on one tier: `shared`, or `local`, which a lost node takes with it. `state`: committed,
    quarantined, or failed (nothing of it is left). `verified_at`: when every byte of it had been read back from storage
    and agreed. `copies`: shares of a local one that a peer node holds too."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="checkpoints")
    folder = models.CharField(max_length=255)
    step = models.BigIntegerField()
    generation = models.PositiveIntegerField()
    tier = models.CharField(max_length=16, default=SHARED)
    state = models.CharField(max_length=16)
    reason = models.TextField(blank=True, default="")
    copies = models.PositiveIntegerField(null=True, blank=True)
    bytes = models.BigIntegerField(null=True, blank=True)
    blocked_s = models.FloatField(null=True, blank=True)
    durable_s = models.FloatField(null=True, blank=True)
    committed_at = models.DateTimeField()
    verified_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["training_job", "folder", "tier"], name="one_row_per_folder_and_tier")
        ]
        ordering = ["-step", "-generation"]

    def __str__(self) -> str:
        return self.folder

    @property
    def on_nodes(self) -> bool:
        return self.tier == LOCAL
