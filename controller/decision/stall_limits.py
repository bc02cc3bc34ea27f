"""How long a rank may stand still in what it is doing, learned from the run. Pure."""

from controller.decision.attempt_facts import AttemptFact, LearnedPace, RankProgress
from controller.decision.policy import Stall

STARTUP, LOADING, FIRST_STEP, STEP = "startup", "loading", "first_step", "step"
SAVING, EVALUATION = "saving", "evaluation"
KINDS = (STARTUP, LOADING, FIRST_STEP, STEP, SAVING, EVALUATION)
_OF_PHASE = {
    "starting": STARTUP,
    "loading": LOADING,
    "warming_up": FIRST_STEP,
    "saving": SAVING,
    "evaluation": EVALUATION,
}
# So many steps ahead of a rank that made none: that one does not report steps, so nothing is known of its progress.
OUT_OF_STEP = 3
WORDS = {
    STARTUP: "starting",
    LOADING: "loading its checkpoint",
    FIRST_STEP: "before its first step",
    STEP: "training",
    SAVING: "saving",
    EVALUATION: "evaluating",
}


def kind_of(rank: RankProgress, attempt: AttemptFact) -> str | None:
    """What the rank is doing; None for one that has nothing left to do."""
    if rank.phase in ("finished", "failed"):
        return None
    if rank.phase == "training" or (rank.phase == "starting" and made_steps(rank, attempt)):
        return STEP if made_steps(rank, attempt) else FIRST_STEP
    return _OF_PHASE.get(rank.phase or "starting")


def made_steps(rank: RankProgress, attempt: AttemptFact) -> bool:
    """In this attempt."""
    return rank.step is not None and rank.step > (attempt.start_step or 0)


def limit_s(kind: str, attempt: AttemptFact, stall: Stall) -> float:
    """What is learned is never looser than what holds unlearned, unless the run has shown that it takes so long."""
    prior: float = getattr(stall, f"{kind}_s")
    seen = attempt.learned.get(kind)
    if kind == STEP and (seen is None or seen.count < stall.learn_from):
        return max((prior, *_longest(seen, stall), *_longest(attempt.learned.get(FIRST_STEP), stall)))
    if seen is None or seen.count < 1:
        return prior
    learned = max(stall.floor_s, stall.median_factor * seen.median_s, stall.longest_factor * seen.longest_s)
    return min(learned, max(prior, stall.longest_factor * seen.longest_s))


def _longest(seen: LearnedPace | None, stall: Stall) -> tuple[float, ...]:
    return () if seen is None else (stall.longest_factor * seen.longest_s,)
