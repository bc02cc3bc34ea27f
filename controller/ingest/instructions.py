"""What an agent is told in the answer: probe, stop, superseded."""

from datetime import timedelta

from controller.clock import aware
from controller.models import Attempt, NodeCheck, TrainingJob
from worker_hooks.protocol.messages import Instruction

PROBE_VALID_S = 10.0
PROBES_AT_ONCE = 16
STOPPED = ("cancelled", "stopped")


def superseded(newest: int) -> Instruction:
    return Instruction("superseded", {"generation": newest})


def for_agent(job: TrainingJob, attempt: Attempt, node: str, newest: int, now: float) -> tuple[Instruction, ...]:
    """A superseded attempt gets nothing else to do. An unanswered probe is repeated until it is too old to matter."""
    if attempt.generation < newest:
        return (superseded(newest),)
    orders = _probes(job, node, now)
    stop = _stop(job, attempt)
    return (*orders, stop) if stop else orders


def _stop(job: TrainingJob, attempt: Attempt) -> Instruction | None:
    """Only for attempts that were there when the job was stopped: somebody may have requeued it by hand since."""
    if job.state not in STOPPED or attempt.created_at > job.state_at:
        return None
    return Instruction("stop", {"reason": job.state_reason or f"the training job is {job.state}"})


def _probes(job: TrainingJob, node: str, now: float) -> tuple[Instruction, ...]:
    asked = (
        NodeCheck.objects.filter(
            vantage=node,
            node__cluster=job.cluster_id,
            answered_at__isnull=True,
            asked_at__gt=aware(now) - timedelta(seconds=PROBE_VALID_S),
        )
        .select_related("node")
        .order_by("pk")[:PROBES_AT_ONCE]
    )
    return tuple(
        Instruction(
            "probe",
            {
                "id": str(check.pk),
                "targets": [{"node": check.node.name, "address": check.address, "port": check.port}],
            },
        )
        for check in asked
    )
