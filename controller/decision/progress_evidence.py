"""What a run's own progress says, as evidence for diagnosis: stalls, a pace that collapsed, losses that are none. Pure.

It stands beside what other layers say. By itself a stall opens an incident, and a loss that stays no number asks.
"""

from dataclasses import replace

from controller.decision import stalls, straggler_evidence
from controller.decision.attempt_facts import AttemptFact
from controller.decision.evidence import JOB, Evidence, Scalar
from controller.decision.facts import SubjectFacts
from controller.decision.losses import NotFinite
from controller.decision.policy import Policy, Stall
from controller.decision.stall_limits import STEP

SOURCE = "progress"


def evidence(subject: SubjectFacts, now: float, policy: Policy) -> tuple[Evidence, ...]:
    """The same facts always give the same pieces, with the same ids."""
    attempt = subject.attempt
    if attempt is None:
        return ()
    own = (*_slow(subject.run_id, attempt, policy.stall), *_losses(subject.run_id, attempt))
    own = (*own, *straggler_evidence.evidence(subject.run_id, attempt))
    return (*stalls.evidence(subject, now, policy), *own)


def _slow(run_id: str, attempt: AttemptFact, stall: Stall) -> list[Evidence]:
    """Against the run's own pace: a collapse of all ranks together names none of them."""
    pace = attempt.learned.get(STEP)
    if pace is None or pace.recent_s is None or pace.count < stall.learn_from or pace.median_s <= 0.0:
        return []
    slowdown = pace.recent_s / pace.median_s
    if slowdown < stall.slow_factor:
        return []
    raw = f"a step takes {pace.recent_s:.3g} s now, {slowdown:.0f} times this run's own {pace.median_s:.3g} s"
    return [_piece(run_id, "progress.slow", "slow", raw, {"slowdown": round(slowdown, 1)}, "progress")]


def _losses(run_id: str, attempt: AttemptFact) -> list[Evidence]:
    row = loss_row(run_id, attempt)
    found = [row] if row is not None else []
    found += [_first(run_id, attempt, place) for place in attempt.not_finite if not _in_row(attempt, place)]
    for spike in attempt.loss.spikes if attempt.loss is not None else ():
        after = f"back at step {spike.healed_step}" if spike.healed else "not back yet"
        raw = f"the loss jumped to {spike.value:.4g} at step {spike.step} (forecast {spike.forecast:.4g}), {after}"
        attrs: dict[str, Scalar] = {"step": spike.step, "value": spike.value, "healed": spike.healed}
        found.append(_piece(run_id, "loss.spike", f"spike:{spike.step}", raw, attrs, "process"))
    return found


def loss_row(run_id: str, attempt: AttemptFact) -> Evidence | None:
    """Rank 0's losses that have been no numbers up to the newest one; its `count` says how many, its id which row of
    which attempt."""
    state = attempt.loss
    if state is None or state.bad_since is None:
        return None
    raw = f"rank 0: the loss has been no number since step {state.bad_since}, {state.bad_steps} times in a row"
    attrs: dict[str, Scalar] = {"step": state.bad_since, "name": "loss"}
    row = _piece(run_id, "loss.not_finite", "", raw, attrs, "process", 0)
    return replace(row, id=f"{rows_of(attempt)}{state.bad_since}", count=state.bad_steps)


def rows_of(attempt: AttemptFact) -> str:
    """How the ids of its `loss_row`s begin."""
    return f"progress:not_finite:g{attempt.generation}:"


def _first(run_id: str, attempt: AttemptFact, place: NotFinite) -> Evidence:
    """`healed`: rank 0's loss was a number later on, so what was no number has not come into the weights."""
    last = attempt.loss.last_finite_step if attempt.loss is not None else None
    healed = last is not None and last > place.step
    raw = f"rank {place.rank}: {place.name} was no number first at step {place.step}"
    attrs: dict[str, Scalar] = {"step": place.step, "name": place.name, "healed": healed}
    what = f"not_finite:{place.rank}:{place.name}"
    later = "; rank 0's loss was one again later" if healed else ""
    return _piece(run_id, "loss.not_finite", what, raw + later, attrs, "process", place.rank)


def _in_row(attempt: AttemptFact, place: NotFinite) -> bool:
    """The first of rank 0's losses that are none still: told once."""
    state = attempt.loss
    return state is not None and (place.rank, place.name, place.step) == (0, "loss", state.bad_since)


def _piece(
    run_id: str, code: str, what: str, raw: str, attrs: dict[str, Scalar], layer: str, rank: int | None = None
) -> Evidence:
    return Evidence(
        id=f"progress:{what}",
        code=code,
        layer=layer,
        source=SOURCE,
        origin=JOB,
        raw=raw,
        rank=rank,
        attrs=attrs,
        job=run_id,
    )
