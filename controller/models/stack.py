"""What the agents of an attempt were asked about ranks that stand still."""

from django.db import models

from controller.models.columns import json_dict
from controller.models.training_job import Attempt


class StackRequest(models.Model):
    """One stall, one request: where do these ranks stand? `number`: of the stall in its attempt, from 1. `ranks`: by
    node. The answers are signs (`stack.stuck`)."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="stack_requests")
    number = models.PositiveSmallIntegerField()
    asked_at = models.DateTimeField()
    ranks = json_dict()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "number"], name="one_stack_request_per_stall")]
        ordering = ["number"]

    def __str__(self) -> str:
        return f"stacks of attempt {self.attempt_id}, stall {self.number}"
