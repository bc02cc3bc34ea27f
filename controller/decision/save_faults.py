"""The detector of saves that fail while the run goes on. Pure.

Theory. A save that fails costs training nothing, and so nobody notices: until a fault, when everything since the last
good one is lost. Most reasons (a quota, a full or read-only disk) stay until a person does something, and a requeue
only meets them again. So a person is asked at once, and the run goes on beside the question. A save that is committed
closes it; what was answered is not asked again for the same row of failures.
"""

from controller.decision.attempt_facts import AttemptFact
from controller.decision.facts import SubjectFacts
from controller.decision.findings import SAVES_FAIL, Clue, Finding
from controller.decision.policy import Policy

AGAIN_S = 3600.0  # sooner after its last question an attempt is not asked about once more


def saves_fail(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """The newest save of a running attempt came to nothing, on shared storage."""
    attempt, slurm = subject.live_attempt, subject.slurm
    if attempt is None or attempt.finished or subject.requeued_since or slurm is None:
        return None
    if slurm.base != "RUNNING" or slurm.completing or not attempt.saves_failed or _answered(subject, attempt, now):
        return None
    often = "the newest save" if attempt.saves_failed == 1 else f"the newest {attempt.saves_failed} saves"
    said, since = f"{often} failed: {attempt.saves_failed_why}", attempt.saves_failed_since
    clue = Clue("process", "agent", f"g{attempt.generation}", "checkpoint.save_failed", said, since or now)
    return Finding(SAVES_FAIL, said, clues=(clue,), fault_at=since or now)


def saved_again(attempt: AttemptFact) -> bool:
    return attempt.saves_failed == 0


def _answered(subject: SubjectFacts, attempt: AttemptFact, now: float) -> bool:
    fault, since = subject.last_fault, attempt.saves_failed_since or 0.0
    if fault is None or fault.cause != SAVES_FAIL or fault.until is None:
        return False
    return since <= fault.until or now - fault.until < AGAIN_S
