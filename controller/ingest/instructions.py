"""What an agent is told in the answer: probe, stop, superseded, save, stacks."""

from datetime import timedelta

from controller.clock import aware
from controller.models import Attempt, NodeCheck, Sign, StackRequest, TrainingJob
from worker_hooks.protocol.answers import Instruction
from worker_hooks.protocol.tiers import SHARED

PROBE_VALID_S = 10.0
PROBES_AT_ONCE = 16
SAVE_VALID_S = 600.0
STACKS_VALID_S = 30.0
STACK = "stack.stuck"
STOPPED = ("cancelled", "stopped")


def superseded(newest: int) -> Instruction:
    return Instruction("superseded", {"generation": newest})


def for_agent(job: TrainingJob, attempt: Attempt, node: str, newest: int, now: float) -> tuple[Instruction, ...]:
    """A superseded attempt gets nothing else to do. An unanswered probe is repeated until it is too old to matter."""
    if attempt.generation < newest:
        return (superseded(newest),)
    orders = (_stop(job, attempt), _save(job, attempt, now), _stacks(attempt, node, now))
    return (*_probes(job, node, now), *(order for order in orders if order))


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
    newest = job.checkpoints.filter(state="committed", tier=SHARED, committed_at__gt=asked)
    if any(saved.committed_at - timedelta(seconds=saved.durable_s or 0.0) >= asked for saved in newest):
        return None
    return Instruction("save", {"id": asked.isoformat(), "why": "asked for on the page"})


def _stacks(attempt: Attempt, node: str, now: float) -> Instruction | None:
    """Said until each of the node's ranks has its sign, or it is too old to be of use."""
    fresh = StackRequest.objects.filter(attempt=attempt, asked_at__gt=aware(now) - timedelta(seconds=STACKS_VALID_S))
    asked = fresh.order_by("-number").first()
    if asked is None or node not in asked.ranks:
        return None
    answers = Sign.objects.filter(attempt=attempt, reporter=node, code=STACK, received_at__gte=asked.asked_at)
    answered = set(answers.values_list("rank", flat=True))
    left = [rank for rank in asked.ranks[node] if rank not in answered]
    return Instruction("stacks", {"id": str(asked.pk), "ranks": left}) if left else None


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
