"""Whether a training job may still be requeued, and why not."""

from controller.decision.facts import Spent
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
