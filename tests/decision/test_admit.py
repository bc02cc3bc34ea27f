"""Ceilings, caps and modes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision import actions
from controller.decision.actions import ActionPlan
from controller.decision.admit import Admission, admit
from controller.decision.facts import ClusterFacts
from controller.decision.policy import Ceilings, Policy
from controller.decision.propose import Proposal, propose
from tests.decision.quiet import NOW, POLICY, cluster, gpu2_lost

pytestmark = pytest.mark.pure


def one(facts: ClusterFacts, policy: Policy = POLICY) -> Admission:
    return admit([propose(gpu2_lost(), NOW, policy)], facts, NOW, policy)[0]


def kinds(admission: Admission) -> list[str]:
    return [plan.kind for plan in admission.proposal.plans]


def test_a_quiet_cluster_admits_all() -> None:
    admission = one(cluster())
    assert (admission.outcome, admission.notes) == ("act", ())
    assert kinds(admission) == [actions.HOLD_NODE, actions.REQUEUE, actions.NOTIFY]


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({"view_at": NOW - 60}, "defer", "too old"),
        ({"view_at": None}, "defer", "too old"),
        ({"paused": True}, "defer", "paused"),
        ({"requeues_last_minute": 10}, "defer", "requeue cap"),
        ({"mode": "observe"}, "observe", "observe mode"),
        ({"breaker_open": True}, "observe", "breaker"),
    ],
)
def test_guards(changes: dict[str, Any], outcome: str, words: str) -> None:
    admission = one(cluster(**changes))
    assert admission.outcome == outcome
    assert words in admission.notes[0]


def test_observe_mode_plans_nothing_and_moves_nothing() -> None:
    admission = one(cluster(mode="observe"))
    assert admission.proposal.plans == ()
    assert admission.proposal.job_event is None


def test_approve_mode_keeps_the_plans_for_a_person() -> None:
    admission = one(cluster(mode="approve"))
    assert admission.outcome == "approve"
    assert actions.REQUEUE in kinds(admission)


@pytest.mark.parametrize(
    "changes",
    [{"nodes_out": frozenset({"gpu3", "gpu4"})}, {"drains_last_hour": 4}],
    ids=["as many out as half", "drains of the hour spent"],
)
def test_a_ceiling_refuses_the_hold_and_the_job_recovers_all_the_same(changes: dict[str, Any]) -> None:
    admission = one(cluster(**changes))
    assert kinds(admission) == [actions.REQUEUE, actions.NOTIFY]
    assert "gpu2 not held" in admission.notes[0]


def test_a_node_that_is_out_already_costs_nothing() -> None:
    full = cluster(nodes_out=frozenset({"gpu2", "gpu4"}), drains_last_hour=4)
    assert actions.HOLD_NODE in kinds(one(full))


def _proposal(number: int, node: str) -> Proposal:
    verdict = propose(gpu2_lost(), NOW, POLICY).verdict
    plans = (ActionPlan(actions.HOLD_NODE, node, 1), ActionPlan(actions.REQUEUE, str(number), 2))
    return Proposal(f"tj-{number}", "lost", verdict=verdict, plans=plans)


@given(
    nodes=st.lists(st.integers(0, 30), max_size=40),
    out=st.frozensets(st.integers(0, 30), max_size=31),
    hour=st.integers(0, 10),
    minute=st.integers(0, 15),
    ceilings=st.builds(
        Ceilings,
        max_nodes_out=st.integers(0, 20),
        max_fraction_out=st.floats(0.01, 1),
        max_drains_per_hour=st.integers(0, 10),
        max_requeues_per_minute=st.integers(0, 20),
    ),
)
def test_no_ceiling_is_ever_passed(
    nodes: list[int], out: frozenset[int], hour: int, minute: int, ceilings: Ceilings
) -> None:
    policy = replace(POLICY, ceilings=ceilings)
    names = frozenset(f"n{i}" for i in out)
    facts = cluster(nodes_total=31, nodes_out=names, drains_last_hour=hour, requeues_last_minute=minute)
    admitted = admit([_proposal(i, f"n{n}") for i, n in enumerate(nodes)], facts, NOW, policy)
    plans = [plan for a in admitted if a.outcome == "act" for plan in a.proposal.plans]
    new = {plan.target for plan in plans if plan.kind == actions.HOLD_NODE} - names
    requeues = sum(plan.kind == actions.REQUEUE for plan in plans)
    assert not new or len(names | new) <= min(ceilings.max_nodes_out, 31 * ceilings.max_fraction_out)
    assert not new or hour + len(new) <= ceilings.max_drains_per_hour
    assert not requeues or minute + requeues <= ceilings.max_requeues_per_minute
