"""How often to save: the optimum between the cost of saving and the work that an interruption loses. Pure. Seconds.

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22 (2006) 303-312: equation 37 for the optimum, equation 20 for the time that the whole run takes.
Failures are taken as a Poisson process, as there. Two things are other than in 2006: a save blocks training for its
`cost_s` only, and its state counts only `durable_s` after it began, so an interruption loses that much more work.
"""

from dataclasses import dataclass
from math import expm1, inf, sqrt

from controller.decision.policy import CheckpointInterval

DAY_S = 86400.0
_LARGEST_EXPONENT = 700.0  # exp() overflows beyond; such a run makes no progress


@dataclass(frozen=True)
class History:
    """What this cluster has shown: so many unplanned ends of training jobs in so many days of nodes that trained."""

    failures: int = 0
    node_days: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Of one training job, measured: what a save takes from training, the time until it counts, and how long training
    takes to be back where it was saved (from the failure to the first step)."""

    cost_s: float
    durable_s: float
    restart_s: float = 0.0


@dataclass(frozen=True)
class Advice:
    """`interval_s`: to use, inside the policy's bounds. `optimum_s`: without them. `lost_share`: of the time, expected
    at `interval_s`. `mtbf_s`: of the whole job."""

    interval_s: float
    optimum_s: float
    lost_share: float
    mtbf_s: float


def advise(costs: Costs, nodes: int, history: History, policy: CheckpointInterval) -> Advice:
    """For a training job on `nodes` nodes."""
    mtbf = job_mtbf_s(nodes, history, policy)
    best = optimum_s(costs.cost_s, mtbf)
    # A save that begins before the one before it is durable would only be skipped.
    least = max(policy.shortest_s, costs.durable_s)
    interval = max(least, min(best, policy.longest_s))
    return Advice(interval, best, lost_share(interval, costs, mtbf), mtbf)


def optimum_s(cost_s: float, mtbf_s: float) -> float:
    """Computing time between two saves. Daly's higher-order solution; the mean time between failures itself where a
    save takes more than twice of that. 0 for a save that costs nothing, infinite where nothing ever fails."""
    if mtbf_s == inf:
        return inf
    if cost_s <= 0.0:
        return 0.0
    if cost_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2.0 * mtbf_s)
    return sqrt(2.0 * cost_s * mtbf_s) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s


def lost_share(interval_s: float, costs: Costs, mtbf_s: float) -> float:
    """Share of the time, 0 to 1, that saving, repeating and restarting are expected to take."""
    if interval_s <= 0.0:
        return 1.0
    if mtbf_s == inf:
        return costs.cost_s / (interval_s + costs.cost_s)
    away = (costs.restart_s + costs.durable_s) / mtbf_s
    segment = (interval_s + costs.cost_s) / mtbf_s
    if away + segment > _LARGEST_EXPONENT:
        return 1.0
    # e^away * (e^segment - 1), without the difference of two nearly equal numbers.
    taken = expm1(away + segment) - expm1(away)
    return 1.0 - min(1.0, interval_s / (mtbf_s * taken))


def failures_per_node_day(history: History, policy: CheckpointInterval) -> float:
    """The prior and what was seen, as a gamma distribution's mean: with no history the prior alone, with much of it
    nearly the history alone."""
    expected = policy.prior_per_node_day * policy.prior_node_days
    return (expected + history.failures) / (policy.prior_node_days + history.node_days)


def job_mtbf_s(nodes: int, history: History, policy: CheckpointInterval) -> float:
    """Mean time between failures of a job on `nodes` nodes: any of them ends it."""
    rate = failures_per_node_day(history, policy) * max(1, nodes)
    return DAY_S / rate if rate > 0.0 else inf
