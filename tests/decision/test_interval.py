"""How often to save: Daly's own figures, and what must hold for any costs."""

from dataclasses import replace
from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision.interval import (
    Costs,
    History,
    advise,
    failures_per_node_day,
    job_mtbf_s,
    lost_share,
    optimum_s,
)
from controller.decision.policy import CheckpointInterval, PolicyError, policy_from

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
POLICY = CheckpointInterval()
seconds = st.floats(0.01, 1e5)


@pytest.mark.parametrize(("mtbf_s", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_dalys_own_figures(mtbf_s: float, minutes: float) -> None:
    assert optimum_s(5 * MINUTE, mtbf_s) / MINUTE == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_a_save_dearer_than_twice_the_time_between_failures() -> None:
    assert optimum_s(2000.0, 1000.0) == 1000.0
    assert optimum_s(1999.0, 1000.0) == pytest.approx(1000.0, rel=0.2)


def test_what_never_fails_is_never_saved_and_what_costs_nothing_always() -> None:
    assert optimum_s(1.0, inf) == inf
    assert optimum_s(0.0, 1000.0) == 0.0
    assert advise(Costs(0.0, 0.0), 1, History(), POLICY).interval_s == POLICY.shortest_s


def test_the_lost_share_is_that_of_dalys_model() -> None:
    """Equation 20, written out."""
    m, r, tau, delta = 6 * HOUR, 600.0, 57 * MINUTE, 5 * MINUTE
    whole = m * exp(r / m) * (exp((tau + delta) / m) - 1.0) / tau
    assert lost_share(tau, Costs(delta, 0.0, r), m) == pytest.approx(1.0 - 1.0 / whole, rel=1e-9)


@given(cost=st.floats(0.01, 600.0), mtbf=st.floats(1800.0, 1e7), factor=st.floats(1.5, 20.0))
def test_the_optimum_loses_least(cost: float, mtbf: float, factor: float) -> None:
    """Daly's is an approximation of the exact minimum: it may be off by little only."""
    best = optimum_s(cost, mtbf)
    costs = Costs(cost, 0.0)
    at_best = lost_share(best, costs, mtbf)
    assert at_best <= lost_share(best * factor, costs, mtbf) * 1.02 + 1e-12
    assert at_best <= lost_share(best / factor, costs, mtbf) * 1.02 + 1e-12


@given(interval=seconds, cost=seconds, durable=seconds, restart=seconds, mtbf=st.floats(1.0, 1e9))
def test_a_share_is_a_share(interval: float, cost: float, durable: float, restart: float, mtbf: float) -> None:
    assert 0.0 <= lost_share(interval, Costs(cost, durable, restart), mtbf) <= 1.0


@given(
    cost=seconds, durable=seconds, nodes=st.integers(0, 20000), failures=st.integers(0, 1000), days=st.floats(0, 1e6)
)
def test_the_advice_is_inside_the_bounds(cost: float, durable: float, nodes: int, failures: int, days: float) -> None:
    found = advise(Costs(cost, durable), nodes, History(failures, days), POLICY)
    assert found.interval_s >= POLICY.shortest_s
    assert found.interval_s >= durable
    assert found.interval_s <= max(POLICY.longest_s, durable)


def test_history_outweighs_the_prior_with_time() -> None:
    assert failures_per_node_day(History(), POLICY) == pytest.approx(POLICY.prior_per_node_day)
    assert failures_per_node_day(History(100_000, 1_000_000.0), POLICY) == pytest.approx(0.1, rel=1e-3)
    # One bad day on a new cluster does not make it the worst of all.
    assert failures_per_node_day(History(2, 4.0), POLICY) < 0.05


def test_more_nodes_fail_more_often() -> None:
    assert job_mtbf_s(1000, History(), POLICY) == pytest.approx(DAY / 6.5)
    assert job_mtbf_s(0, History(), POLICY) == job_mtbf_s(1, History(), POLICY)
    never = replace(POLICY, prior_per_node_day=0.0)
    assert job_mtbf_s(8, History(), never) == inf


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"checkpoint\.longest_s"):
        policy_from({"checkpoint": {"shortest_s": 100.0, "longest_s": 10.0}})
