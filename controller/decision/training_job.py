"""The training job's table: the words that the researcher reads."""

from controller.decision.machine import Machine

_END = {"finish": "finished", "stop": "stopped", "cancel": "cancelled"}

TRAINING_JOB = Machine(
    name="training job",
    initial="queued",
    final=frozenset({"finished", "cancelled"}),
    table={
        "queued": {"start": "starting", "train": "training", "fault": "recovering", **_END},
        "starting": {"train": "training", "queue": "queued", "fault": "recovering", **_END},
        "training": {"fault": "recovering", "queue": "queued", "start": "starting", **_END},
        "recovering": {"verify": "verifying", "train": "training", **_END},
        "verifying": {"train": "training", "fault": "recovering", **_END},
        # `stopped` means: a person is needed. Somebody may requeue the job by hand, and it lives on.
        "stopped": {
            "start": "starting",
            "train": "training",
            "queue": "queued",
            "finish": "finished",
            "cancel": "cancelled",
        },
        "finished": {},
        "cancelled": {},
    },
)
