"""A job that Slurm calls COMPLETED and that did not do what it set out to do. Pure.

Theory. An exit code of 0 proves nothing: a script that resumes exactly at the end of an epoch, finds nothing left to do
there and returns ends like one that is done. So where a run said how many steps it takes, COMPLETED finishes it only
once these steps are known to be made; where it said nothing, an attempt that made no step after its restore does not.
What nobody heard is unknown and no end either. The script's own word that it stops early counts, and so does a
person's. Nothing is requeued: the same start would end the same way, and one that is done must never run again.
"""

from controller.decision.attempt_facts import AttemptFact
from controller.decision.facts import SubjectFacts
from controller.decision.findings import INCOMPLETE, Clue, Finding
from controller.decision.policy import Policy

# So long after the end the last words of its agents may still be on their way.
SETTLE_S = 15.0
NO_STEP = "no step after the restore"


def shortfall(subject: SubjectFacts) -> str | None:
    """What is missing, in words; None for every job that is not COMPLETED, or did it all as far as anybody can tell."""
    slurm, attempt = subject.slurm, subject.attempt
    if slurm is None or slurm.base != "COMPLETED" or slurm.completing or attempt is None:
        return None
    if _accepted(subject) or (attempt.early and not subject.requeued_since):
        return None
    return _missing(subject, attempt)


def ended_short(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """Once its agents have said all that they will."""
    said, slurm, attempt = shortfall(subject), subject.slurm, subject.attempt
    if said is None or slurm is None or attempt is None:
        return None
    last_word = max([slurm.end_at or 0.0, *(agent.received_at for agent in attempt.agents)])
    if not _said_its_end(subject, attempt) and now - last_word < SETTLE_S:
        return None
    at = slurm.end_at or subject.view_at or now
    clues = (
        Clue("slurm", "slurm", slurm.job_id, slurm.base, f"job {slurm.job_id} COMPLETED exit {slurm.exit_code}", at),
        Clue("progress", "agent", f"g{attempt.generation}", "run.incomplete", said, at),
    )
    return Finding(INCOMPLETE, said, clues=clues, fault_at=at)


def _missing(subject: SubjectFacts, attempt: AttemptFact) -> str | None:
    total = subject.total_steps
    reached = max(attempt.step or 0, attempt.start_step or 0)
    idle = _made_no_step(attempt)
    if total is None:
        return f"{NO_STEP} of step {attempt.start_step}, and the run did not say how many it takes" if idle else None
    if reached >= total:
        return None
    said = f"{reached} of {total} steps"
    if subject.requeued_since:
        return f"{said}; nothing was heard of the start that Slurm calls completed"
    if not _said_its_end(subject, attempt):
        return f"{said}; its agents did not tell how it ended, so what it did after step {reached} is unknown"
    return f"{said}; {NO_STEP} of step {attempt.start_step}" if idle else said


def _made_no_step(attempt: AttemptFact) -> bool:
    start = attempt.start_step or 0
    return start > 0 and not attempt.first_step_seen and (attempt.step or 0) <= start


def _said_its_end(subject: SubjectFacts, attempt: AttemptFact) -> bool:
    return attempt.finished and not subject.requeued_since


def _accepted(subject: SubjectFacts) -> bool:
    """A person has closed the question about this very attempt: then it is as complete as it will be."""
    fault, attempt = subject.last_fault, subject.attempt
    if fault is None or attempt is None or (fault.cause, fault.state) != (INCOMPLETE, "resolved"):
        return False
    return not subject.requeued_since and fault.detected_at >= (attempt.launched_at or 0.0)
