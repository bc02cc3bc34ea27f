"""Metric points, in chunks as they came. Nothing is deleted or overwritten: the kept curve is chosen on reading."""

from django.db import models

from controller.models.columns import json_list
from controller.models.training_job import Attempt, TrainingJob


class MetricChunk(models.Model):
    """Points of one metric of one rank in one attempt. `values`: numbers, or NaN, Infinity, -Infinity as text."""

    training_job = models.ForeignKey(TrainingJob, on_delete=models.CASCADE, related_name="chunks")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="chunks")
    node = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    rank = models.PositiveIntegerField()
    name = models.CharField(max_length=128)
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    steps = json_list()
    times = json_list()
    values = json_list()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "node", "seq"], name="one_chunk_per_record")]
        indexes = [models.Index(fields=["training_job", "name", "first_step"])]

    def __str__(self) -> str:
        return f"{self.name} {self.first_step}..{self.last_step}"
