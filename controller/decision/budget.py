"""Whether a training job may still be requeued, and why not."""

from controller.decision.assessment import Assessment
from controller.decision.facts import Spent, SubjectFacts
from controller.decision.policy import Budget


def refusal(kind: str, spent: Spent, budget: Budget) -> str | None:
    """None when one more requeue of this kind fits, else the reason in words. `kind` `none` charges nothing."""
    if spent.same_step >= budget.same_step:
        return f"no progress in {spent.same_step} attempts at the same step"
    if kind == "none":
        return None
    used, allowed = getattr(spent, kind), getattr(budget, kind)
    if used >= allowed:
        return f"budget spent: {used} of {allowed} {kind} restarts"
    return None


def over_limit(found: Assessment, spent: Spent) -> str | None:
    """Why a verdict that allows only so many requeues at the same step allows no more; None while it does, or sets no
    limit of its own."""
    limit, used = found.requeue_limit, spent.of_kind.get(found.verdict, 0)
    if limit is None or used < limit:
        return None
    often = "once" if limit == 1 else f"{limit} times"
    return f"{found.verdict} is requeued at most {often} without progress, and was requeued {used} of {limit} already"


def no_progress_in_time(subject: SubjectFacts, budget: Budget) -> str | None:
    """Why a job that used up its time is not given as much again. Without an agent progress cannot be seen: so often as
    without progress elsewhere, and then a person is asked."""
    progress = _progress(subject)
    if progress is False:
        return "no new step was made in all of its time; more of it would not help"
    if progress is None and subject.spent.time_limit >= budget.same_step:
        return f"{subject.spent.time_limit} time limits, and nothing tells whether it makes progress (it has no agent)"
    return None


def _progress(subject: SubjectFacts) -> bool | None:
    """Whether the start that has just ended got further than all before it; None: it never spoke."""
    attempt, slurm = subject.attempt, subject.slurm
    if attempt is None or slurm is None or not attempt.agents:
        return None
    if (attempt.slurm_job_id, attempt.restart_count) != (slurm.job_id, slurm.restarts):
        return None
    return attempt.first_new_step_seen or (attempt.generation == 1 and attempt.first_step_seen)
