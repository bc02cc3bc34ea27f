"""Asks the agents where the ranks of a suspected stall stand: one row for each stall, written once.

The row is all: a process that is killed before it asks again, one that is killed after it finds the row. Ingest hands
it to the agents until they have answered.
"""

from collections.abc import Iterable

from controller.clock import aware
from controller.decision.facts import SubjectFacts
from controller.decision.policy import Policy
from controller.decision.stack_wishes import wanted
from controller.decision.stalls import Stalled, look
from controller.models import Attempt, Cluster, StackRequest


def ask(cluster: Cluster, subjects: Iterable[SubjectFacts], now: float, policy: Policy) -> None:
    """Costs no query while no run stands still."""
    for subject in subjects:
        found = look(subject, now, policy)
        if found is not None and subject.attempt is not None:
            _ask(cluster, subject.run_id, subject.attempt.generation, found, now)


def _ask(cluster: Cluster, run_id: str, generation: int, found: Stalled, now: float) -> None:
    attempt = Attempt.objects.filter(
        training_job__cluster=cluster, training_job__run_id=run_id, generation=generation
    ).first()
    if attempt is None:
        return
    earlier = StackRequest.objects.filter(attempt=attempt).values_list("asked_at", flat=True)
    asked = [at.timestamp() for at in earlier]
    ranks = wanted(found, asked)
    if ranks:
        row = StackRequest(attempt=attempt, number=len(asked) + 1, asked_at=aware(now), ranks=ranks)
        StackRequest.objects.bulk_create([row], ignore_conflicts=True)  # another process may have been faster
