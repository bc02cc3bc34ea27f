"""Checkpoints, as the agents reported them. The truth is in the checkpoint root."""

from django.db import models

from controller.models.training_job import TrainingJob


class Checkpoint(models.Model):
    """One checkpoint folder. `state`: committed, quarantined, or failed (nothing of it is left). `verified_at`: when
    every byte of it had been read back from storage and agreed."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="checkpoints")
    folder = models.CharField(max_length=255)
    step = models.BigIntegerField()
    generation = models.PositiveIntegerField()
    state = models.CharField(max_length=16)
    reason = models.TextField(blank=True, default="")
    bytes = models.BigIntegerField(null=True, blank=True)
    blocked_s = models.FloatField(null=True, blank=True)
    durable_s = models.FloatField(null=True, blank=True)
    committed_at = models.DateTimeField()
    verified_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["training_job", "folder"], name="one_row_per_folder")]
        ordering = ["-step", "-generation"]

    def __str__(self) -> str:
        return self.folder
