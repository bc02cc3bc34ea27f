"""What a run's own progress says, as evidence for diagnosis: stalls, a pace that collapsed, losses that are none. Pure.

None of it opens an incident by itself but a stall; it stands beside what other layers say.
"""

from controller.decision import stalls
from controller.decision.attempt_facts import AttemptFact
from controller.decision.evidence import JOB, Evidence, Scalar
from controller.decision.facts import SubjectFacts
from controller.decision.policy import Policy, Stall
from controller.decision.stall_limits import STEP


def evidence(subject: SubjectFacts, now: float, policy: Policy) -> tuple[Evidence, ...]:
    """The same facts always give the same pieces, with the same ids."""
    attempt = subject.attempt
    if attempt is None:
        return ()
    own = (*_slow(subject.run_id, attempt, policy.stall), *_losses(subject.run_id, attempt))
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
    found = [
        _piece(
            run_id,
            "loss.not_finite",
            f"not_finite:{place.rank}:{place.name}",
            f"rank {place.rank}: {place.name} was no number first at step {place.step}",
            {"step": place.step, "name": place.name},
            "process",
            place.rank,
        )
        for place in attempt.not_finite
    ]
    for spike in attempt.loss.spikes if attempt.loss is not None else ():
        after = f"back at step {spike.healed_step}" if spike.healed else "not back yet"
        raw = f"the loss jumped to {spike.value:.4g} at step {spike.step} (forecast {spike.forecast:.4g}), {after}"
        attrs: dict[str, Scalar] = {"step": spike.step, "value": spike.value, "healed": spike.healed}
        found.append(_piece(run_id, "loss.spike", f"spike:{spike.step}", raw, attrs, "process"))
    return found


def _piece(
    run_id: str, code: str, what: str, raw: str, attrs: dict[str, Scalar], layer: str, rank: int | None = None
) -> Evidence:
    return Evidence(
        id=f"progress:{what}",
        code=code,
        layer=layer,
        source="progress",
        origin=JOB,
        raw=raw,
        rank=rank,
        attrs=attrs,
        job=run_id,
    )
