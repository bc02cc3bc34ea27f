"""What an agent is told in the answer: probe, stop, superseded, save."""

from datetime import timedelta

from controller.clock import aware
from controller.models import Attempt, NodeCheck, TrainingJob
from worker_hooks.protocol.messages import Instruction

PROBE_VALID_S = 10.0
PROBES_AT_ONCE = 16
SAVE_VALID_S = 600.0
STOPPED = ("cancelled", "stopped")


def superseded(newest: int) -> Instruction:
    return Instruction("superseded", {"generation": newest})


def for_agent(job: TrainingJob, attempt: Attempt, node: str, newest: int, now: float) -> tuple[Instruction, ...]:
    """A superseded attempt gets nothing else to do. An unanswered probe is repeated until it is too old to matter."""
    if attempt.generation < newest:
        return (superseded(newest),)
    orders = _probes(job, node, now)
    return (*orders, *(order for order in (_stop(job, attempt), _save(job, attempt, now)) if order))


def _stop(job: TrainingJob, attempt: Attempt) -> Instruction | None:
    """Only for attempts that were there when the job was stopped: somebody may have requeued it by hand since."""
    if job.state not in STOPPED or attempt.created_at > job.state_at:
        return None
    return Instruction("stop", {"reason": job.state_reason or f"the training job is {job.state}"})


def _save(job: TrainingJob, attempt: Attempt, now: float) -> Instruction | None:
    """Said until a checkpoint is there that was begun after it was asked for, or it is too old to be what was meant."""
    asked = job.save_asked_at
    if asked is None or attempt.created_at > asked or now - asked.timestamp() > SAVE_VALID_S:
        return None
    newest = job.checkpoints.filter(state="committed", committed_at__gt=asked)
    if any(saved.committed_at - timedelta(seconds=saved.durable_s or 0.0) >= asked for saved in newest):
        return None
    return Instruction("save", {"id": asked.isoformat(), "why": "asked for on the page"})


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
