"""The detector of losses that stay no numbers: a person is asked, and the run goes on. Pure.

Theory. Nothing of a state with NaN in it can be trained any further, but whether it is the program, its data or a
machine, NaN does not tell, and a script may know what to do about it. So nothing is ended, requeued or held for it
alone: a second sign, of a GPU, makes it that node's (`refine`). Rank 0's loss speaks for the run, because a gradient
that is no number reaches all ranks. Numbers that come back close the incident; a loss that comes and goes is asked
about once in a while, not at each turn.
"""

from controller.decision.attempt_facts import AttemptFact
from controller.decision.facts import SubjectFacts
from controller.decision.findings import NOT_FINITE, Finding, clue_of
from controller.decision.policy import Policy
from controller.decision.progress_evidence import loss_row, rows_of

AGAIN_S = 3600.0  # sooner after its last question an attempt is not asked about once more


def not_finite(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """Rank 0's loss has been no number for so many values in a row, the newest among them. What a person has answered
    is not asked again before numbers came back."""
    attempt, slurm, enough = subject.live_attempt, subject.slurm, policy.loss.not_finite_steps
    if attempt is None or attempt.finished or subject.requeued_since or slurm is None:
        return None
    row = loss_row(subject.run_id, attempt)
    if slurm.base != "RUNNING" or slurm.completing or row is None or not 0 < enough <= row.count:
        return None
    if _answered(subject, row.id, attempt, now):
        return None
    return Finding(NOT_FINITE, row.raw, clues=(clue_of(row, "accuses", now),), fault_at=now)


def numbers_again(attempt: AttemptFact) -> bool:
    """Whether the newest loss that is known is a number."""
    return attempt.loss is not None and attempt.loss.last_step is not None and attempt.loss.bad_since is None


def _answered(subject: SubjectFacts, piece: str, attempt: AttemptFact, now: float) -> bool:
    """This very row, or another one of the same attempt a short while ago."""
    fault = subject.last_fault
    if fault is None or fault.cause != NOT_FINITE or fault.until is None:
        return False
    lately = now - fault.until < AGAIN_S
    return piece in fault.rests_on or (lately and any(one.startswith(rows_of(attempt)) for one in fault.rests_on))
