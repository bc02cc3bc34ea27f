"""Stragglers: who is slower than its own kind, and how much. Pure.

Theory. A worker is compared only with the workers that do the same work: the same role (a pipeline stage), the same
operation, the same chunk of the model, the same step. A stage that is slower than the other stages is badly cut, and
no worker's fault. Operations that talk to others contain the wait for the others, so they say nothing about whom they
were measured on. One step is chance: a worker is a straggler when it is slow in most steps, in every operation that
matters, against peers that agree with each other. Where half of a role is slow, or a role has two workers, they can
only disagree: nobody is named.

Medians and median deviations everywhere: one odd value moves nothing. Multiplying all durations changes nothing.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

# Parts of an operation's name that say it waits for others. `clip`: the norm of all gradients is a sum over ranks.
WAITS = re.compile(
    r"send|recv|receive|reduce|gather|scatter|broadcast|barrier|all.?to.?all|p2p|sync|wait|collective|nccl|comm|clip",
    re.IGNORECASE,
)
FEW = 128  # workers, up to which a worker's own noise is left out of its peers'
DEVIATION = 1.4826  # from a median deviation to the standard deviation of a normal distribution


@dataclass(frozen=True)
class Timing:
    """One operation of one worker in one step. `role`: the workers that do the same work share it. `chunk`: the part of
    the model, where a worker holds several."""

    worker: int
    role: str
    operation: str
    step: int
    seconds: float
    chunk: str = ""


@dataclass(frozen=True)
class Margins:
    """`effect`: the least slow-down that counts. `share`: of the steps in which it must show. `peers`: other workers of
    the role in the same step. `steps`: fewer say nothing. `weight`: operations below this share of the role's time do
    not matter. `noise`: so many deviations of the peers are chance."""

    effect: float = 0.12
    share: float = 0.7
    peers: int = 2
    steps: int = 3
    weight: float = 0.05
    noise: float = 4.0


@dataclass(frozen=True)
class Straggler:
    """`slowdown`: its time over that of its peers in the same work (2.0: twice). `share`: of the steps that show it."""

    worker: int
    role: str
    slowdown: float
    share: float


@dataclass(frozen=True)
class Comparison:
    """`stragglers`: the slowest first. `undecided`: roles of which nothing can be said, and why. `imbalance`: the time
    of the slowest role over the median of the roles: nobody's fault."""

    stragglers: tuple[Straggler, ...] = ()
    undecided: Mapping[str, str] = field(default_factory=dict)
    imbalance: float = 1.0

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(sorted(found.worker for found in self.stragglers))


Work = tuple[str, str]  # operation, chunk
Series = dict[int, float]  # by step: the median of the operation's durations
Role = dict[Work, dict[int, Series]]  # by work and worker


def compare(timings: Iterable[Timing], margins: Margins | None = None) -> Comparison:
    """In any order. Durations that are not positive numbers are left out, and so is all waiting for others."""
    margins = margins or Margins()
    roles = _roles(timings)
    stragglers: list[Straggler] = []
    undecided: dict[str, str] = {}
    for name in sorted(roles):
        found, why = _judge_role(name, roles[name], margins)
        stragglers += found
        if why:
            undecided[name] = why
    stragglers.sort(key=lambda s: (-s.slowdown, s.worker))
    return Comparison(tuple(stragglers), undecided, _imbalance(roles))


def _roles(timings: Iterable[Timing]) -> dict[str, Role]:
    gathered: dict[tuple[str, Work, int, int], list[float]] = defaultdict(list)
    for t in timings:
        if 0.0 < t.seconds < float("inf") and not WAITS.search(t.operation):
            gathered[t.role, (t.operation, t.chunk), t.worker, t.step].append(t.seconds)
    roles: dict[str, Role] = {}
    for (role, work, worker, step), seconds in gathered.items():
        roles.setdefault(role, {}).setdefault(work, {}).setdefault(worker, {})[step] = median(seconds)
    return roles


# --- one role -----------------------------------------------------------------------------------------------------


def _judge_role(name: str, role: Role, margins: Margins) -> tuple[list[Straggler], str]:
    """Those to blame, or why nothing can be said."""
    workers = sorted({worker for series in role.values() for worker in series})
    if len(workers) <= margins.peers:
        return [], f"{len(workers)} of a kind can only disagree"
    heavy = _heavy(role, margins.weight)
    in_order = {work: _sorted_steps(role[work].values()) for work in heavy}
    ratios = {worker: _ratios(role, heavy, worker, in_order, margins) for worker in workers}
    peers = _Peers(ratios, {work: sorted(median(s.values()) for s in role[work].values()) for work in heavy})
    found = [s for worker in workers if (s := _judge(name, role, worker, ratios[worker], peers, margins)) is not None]
    if 2 * len(found) >= len(workers):
        return [], f"{len(found)} of {len(workers)} are slow: which of them are right cannot be told"
    return found, ""


def _heavy(role: Role, weight: float) -> list[Work]:
    cost = {work: _typical(series.values()) for work, series in role.items()}
    total = sum(cost.values())
    return sorted(work for work, seconds in cost.items() if seconds >= weight * total)


def _typical(series: Iterable[Series]) -> float:
    return median(median(steps.values()) for steps in series)


def _ratios(
    role: Role,
    heavy: Sequence[Work],
    worker: int,
    sorted_steps: Mapping[Work, Mapping[int, Sequence[float]]],
    margins: Margins,
) -> dict[Work, list[float]]:
    """For each operation that matters: in each step its own time over the median of its peers in that step."""
    found: dict[Work, list[float]] = {}
    for work in heavy:
        own = role[work].get(worker, {})
        against = [(own[step], sorted_steps[work][step]) for step in sorted(own)]
        found[work] = [took / _median_without(took, all_) for took, all_ in against if len(all_) > margins.peers]
    return found


def _sorted_steps(series: Iterable[Series]) -> dict[int, list[float]]:
    """By step the durations of all workers, in order."""
    found: dict[int, list[float]] = defaultdict(list)
    for steps in series:
        for step, seconds in steps.items():
            found[step].append(seconds)
    return {step: sorted(durations) for step, durations in found.items()}


def _median_without(value: float, ordered: Sequence[float]) -> float:
    """Of what is left when `value`, one of them, is taken out; sorting anew for each worker would cost its square."""
    gap, left = bisect_left(ordered, value), len(ordered) - 1
    low, high = (left - 1) // 2, left // 2
    return (ordered[low + (low >= gap)] + ordered[high + (high >= gap)]) / 2


def _judge(
    name: str, role: Role, worker: int, ratios: Mapping[Work, list[float]], peers: "_Peers", margins: Margins
) -> Straggler | None:
    """Slow in every operation that matters, in most steps, and by more than its peers differ among themselves."""
    shares = []
    for work, own in ratios.items():
        if len(own) < margins.steps or median(own) <= 1.0 + margins.effect:
            return None
        limit = 1.0 + max(margins.effect, margins.noise * peers.noise(worker, work))
        shares.append(sum(1 for ratio in own if ratio > limit) / len(own))
        if median(own) <= limit:
            return None
    if not shares or min(shares) < margins.share:
        return None
    return Straggler(worker, name, _slowdown(role, ratios, worker, peers.costs), min(shares))


class _Peers:
    """What a worker is held against. `costs`: what each operation takes each worker, in order. Noise: how far ratios
    lie from their middle; among very many workers one more or less moves no median, so it is worked out once."""

    def __init__(self, ratios: Mapping[int, Mapping[Work, list[float]]], costs: Mapping[Work, Sequence[float]]) -> None:
        self._ratios = ratios
        self.costs = costs
        self._of_all: dict[Work, float] = {}

    def noise(self, worker: int, work: Work) -> float:
        if len(self._ratios) <= FEW:
            return _spread([r for other, found in self._ratios.items() if other != worker for r in found[work]])
        if work not in self._of_all:
            self._of_all[work] = _spread([r for found in self._ratios.values() for r in found[work]])
        return self._of_all[work]


def _spread(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    middle = median(values)
    return DEVIATION * median(abs(value - middle) for value in values)


def _slowdown(role: Role, own: Mapping[Work, list[float]], worker: int, costs: Mapping[Work, Sequence[float]]) -> float:
    """Weighed by how long each operation takes its peers."""
    peers = {work: _median_without(median(role[work][worker].values()), costs[work]) for work in own}
    return sum(peers[work] * median(own[work]) for work in own) / sum(peers.values())


# --- between the roles ----------------------------------------------------------------------------------------------


def _imbalance(roles: Mapping[str, Role]) -> float:
    """One role alone is balanced."""
    cost = [sum(_typical(series.values()) for series in role.values()) for role in roles.values()]
    return max(cost) / median(cost) if cost else 1.0
