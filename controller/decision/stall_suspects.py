"""Which rank of a run that stands still is the one that the others wait for. Pure.

The suspect differs from its equals: it has ended, its agent is mute, it is a step behind, its heartbeat thread stopped
while others beat, it is in another phase, it was the first to stand still. The first of these that tells a few apart
from the rest is taken; more than half of the ranks are no suspects but the run itself. All equal: nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controller.decision.attempt_facts import AttemptFact, RankProgress
from controller.decision.stall_limits import STEP

# Reports come a second apart and travel: two ranks that stopped within this of each other stopped together.
JITTER_S = 5.0
# A rank's heartbeat thread runs five times a second whatever the training thread waits for, unless the GIL is held.
BEAT_LOST_S = 15.0


@dataclass(frozen=True)
class Standing:
    """One rank that stands still. `over_s`: beyond its limit; negative within it."""

    rank: RankProgress
    kind: str
    since: float
    age_s: float
    limit_s: float

    @property
    def over_s(self) -> float:
        return self.age_s - self.limit_s


@dataclass(frozen=True)
class Scene:
    """`counted`: the ranks that stand still. `mute`: nodes whose agent says nothing."""

    attempt: AttemptFact
    counted: tuple[Standing, ...]
    mute: frozenset[str] = frozenset()


def suspects(scene: Scene) -> tuple[tuple[int, ...], str]:
    """The ranks, in order, and what tells them apart, in words that follow `rank N`; ((), "") where nothing does."""
    for rule in RULES:
        ranks, why = rule(scene)
        if ranks and 2 * len(ranks) <= len(scene.attempt.ranks):
            return tuple(sorted(ranks)), why
    return (), ""


def beat_lost(rank: RankProgress) -> bool:
    """Its heartbeat thread stopped too: not a wait for others, in which Python threads go on."""
    return rank.beat_at is not None and rank.heard_at - rank.beat_at > BEAT_LOST_S


def _gone(scene: Scene) -> tuple[set[int], str]:
    """Ended while the others wait for it: one that had no more work to do as well."""
    return {rank.rank for rank in scene.attempt.ranks if rank.state == "exited"}, "has ended while the others wait"


def _mute(scene: Scene) -> tuple[set[int], str]:
    ranks = {rank.rank for rank in scene.attempt.ranks if rank.node in scene.mute}
    return ranks, f"is on {', '.join(sorted(scene.mute))}, whose agent says nothing"


def _behind(scene: Scene) -> tuple[set[int], str]:
    """The others went on without it, so it had stopped before. At most half may be behind: one that is ahead of all
    the others is not waited for."""
    steps = {s.rank.rank: s.rank.step for s in scene.counted if s.rank.step is not None}
    ahead, least = max(steps.values(), default=0), min(steps.values(), default=0)
    behind = [rank for rank, step in steps.items() if step < ahead]
    if not behind or 2 * len(behind) > len(steps):
        return set(), ""
    return {rank for rank in behind if steps[rank] == least}, f"stands at step {least}, the others at {ahead}"


def _beatless(scene: Scene) -> tuple[set[int], str]:
    ranks = {s.rank.rank for s in scene.counted if beat_lost(s.rank)}
    return ranks, "runs no Python thread: it is stopped, or its GIL is held"


def _elsewhere(scene: Scene) -> tuple[set[int], str]:
    """In another phase than most."""
    phases: dict[str, set[int]] = {}
    for s in scene.counted:
        phases.setdefault(s.rank.phase or "starting", set()).add(s.rank.rank)
    most = max(sorted(phases), key=lambda name: len(phases[name]))
    odd = {rank for name, ranks in phases.items() if name != most for rank in ranks}
    names = ", ".join(sorted(name for name in phases if name != most))
    return (odd if 2 * len(odd) < len(scene.counted) else set()), f"is {names}, the others are {most}"


def _first(scene: Scene) -> tuple[set[int], str]:
    """Earlier than all others by more than reports and steps differ anyway."""
    step = scene.attempt.learned.get(STEP)
    jitter = max(JITTER_S, 2.0 * step.median_s if step is not None else 0.0)
    order = sorted(scene.counted, key=lambda s: s.since)
    for place in range(1, len(order) // 2 + 1):
        gap = order[place].since - order[place - 1].since
        if gap > jitter:
            return {s.rank.rank for s in order[:place]}, f"stood still {gap:.0f} s before the others"
    return set(), ""


Rule = Callable[[Scene], tuple[set[int], str]]
RULES: tuple[Rule, ...] = (_gone, _mute, _behind, _beatless, _elsewhere, _first)
