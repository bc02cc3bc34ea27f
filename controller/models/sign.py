"""What readers found on the nodes and in the jobs: signs as they came, and the sensors whose word some of them are."""

from django.db import models

from controller.models.cluster import Cluster
from controller.models.columns import json_dict, json_list
from controller.models.training_job import Attempt


class NodeSensor(models.Model):
    """The root sensor of one node: its credential and its last word.

    `token_digest`: "" once it is revoked. `streams`: [[stream, the highest number committed]], the newest last: a spool
    that was made anew counts from 1 again, and an older one may still be delivered. `readers`: {reader: `ok`, `absent`
    or what failed}. `gpus`: {PCI address: UUID}. `left_out`: signs that were dropped because there were too many.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="sensors")
    node = models.CharField(max_length=255)
    token_digest = models.CharField(max_length=80, blank=True, default="", db_index=True)
    created_at = models.DateTimeField()
    streams = json_list()
    boot_id = models.CharField(max_length=64, blank=True, default="")
    received_at = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    clock_offset_s = models.FloatField(default=0.0)
    version = models.CharField(max_length=64, blank=True, default="")
    readers = json_dict()
    gpus = json_dict()
    identity = json_dict()
    left_out = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "node"], name="one_sensor_per_node")]

    def __str__(self) -> str:
        return f"sensor of {self.node}"


class Sign(models.Model):
    """One record of kind `sign`. `origin`: by which door it came, never what it says of itself.

    `node`: the host that it was read on, or that a line of a job names as its own. `reporter`: whose record it is; with
    `stream` and `seq` it counts once. `observed_at` and `last_at` are corrected to the controller's clock. `order`: 0
    for codes that name somebody by themselves, up to 4 for what only says what was going on: what is kept and read
    first where there is too much.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="signs")
    origin = models.CharField(max_length=8, choices=[("sensor", "sensor"), ("job", "job")])
    sensor = models.ForeignKey(NodeSensor, null=True, blank=True, on_delete=models.CASCADE, related_name="signs")
    attempt = models.ForeignKey(Attempt, null=True, blank=True, on_delete=models.CASCADE, related_name="signs")
    reporter = models.CharField(max_length=255)
    stream = models.CharField(max_length=64, blank=True, default="")
    seq = models.BigIntegerField()
    node = models.CharField(max_length=255)
    rank = models.PositiveIntegerField(null=True, blank=True)
    code = models.CharField(max_length=128)
    layer = models.CharField(max_length=32)
    source = models.CharField(max_length=64)
    raw = models.TextField()
    attrs = json_dict()
    count = models.PositiveBigIntegerField(default=1)
    order = models.PositiveSmallIntegerField(default=4)
    observed_at = models.DateTimeField()
    last_at = models.DateTimeField(null=True, blank=True)
    received_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["sensor", "stream", "seq"], name="one_sign_per_sensor_record"),
            models.UniqueConstraint(fields=["attempt", "reporter", "seq"], name="one_sign_per_agent_record"),
            models.CheckConstraint(
                name="sign_origin",
                condition=models.Q(origin="sensor", sensor__isnull=False, attempt__isnull=True)
                | models.Q(origin="job", sensor__isnull=True, attempt__isnull=False),
            ),
        ]
        indexes = [
            models.Index(fields=["attempt", "order", "-observed_at"], name="signs_of_an_attempt"),
            models.Index(fields=["cluster", "origin", "node", "-observed_at"], name="signs_of_a_node"),
            models.Index(fields=["cluster", "received_at"], name="signs_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.code} on {self.node} by the {self.origin}"
