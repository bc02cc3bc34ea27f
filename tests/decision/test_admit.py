"""Ceilings, caps and modes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision import actions, by_hand, rights
from controller.decision.actions import ActionPlan
from controller.decision.admit import Admission, admit
from controller.decision.codec import cluster_from_json
from controller.decision.facts import ClusterFacts
from controller.decision.policy import Ceilings, Policy
from controller.decision.propose import Proposal, propose
from tests.decision.quiet import NOW, POLICY, cluster, gpu2_lost, slurm_job

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


def _rights(grant: str = "", job_user: str = "relume", **may: str) -> dict[str, Any]:
    found = {name: {"may": word, "grant": grant} for name, word in may.items()}
    return {"rights": {"capabilities": found}, "job_user": job_user}


@pytest.mark.parametrize("word", [rights.YES, rights.UNKNOWN, rights.SOME])
def test_a_right_that_may_be_there_is_tried(word: str) -> None:
    admission = one(cluster(**_rights(update_nodes=word, jobs_of_others=word)))
    assert kinds(admission) == [actions.HOLD_NODE, actions.REQUEUE, actions.NOTIFY] and admission.notes == ()


def test_without_the_right_to_drain_the_job_recovers_and_the_note_says_what_is_missing() -> None:
    admission = one(cluster(**_rights("sacctmgr …\nsecond line", update_nodes=rights.NO)))
    assert kinds(admission) == [actions.REQUEUE, actions.NOTIFY]
    (note,) = admission.notes
    assert note.startswith("gpu2 not held: the controller may not drain nodes here; grant it with: sacctmgr …; second")
    assert note.endswith("; this job stays away from it")
    (note,) = one(cluster(**_rights(update_nodes=rights.NO))).notes
    assert note == "gpu2 not held: the controller may not drain nodes here; this job stays away from it"


def test_a_drain_of_somebody_else_needs_no_right() -> None:
    out = cluster(nodes_out=frozenset({"gpu2"}), **_rights(update_nodes=rights.NO))
    assert actions.HOLD_NODE in kinds(one(out)), "adopted: nothing is written"


def test_without_the_right_over_jobs_people_are_asked_and_nothing_is_charged() -> None:
    facts = cluster(**_rights("sacctmgr …", jobs_of_others=rights.NO))
    lost = gpu2_lost(slurm=slurm_job(user="ada", excluded_nodes=("gpu9",)))
    admission = admit([propose(lost, NOW, POLICY)], facts, NOW, POLICY)[0]
    proposal = admission.proposal
    assert (admission.outcome, proposal.job_event, proposal.charge) == ("act", "stop", "none")
    assert kinds(admission) == [actions.HOLD_NODE, actions.NOTIFY]
    assert proposal.ask is not None and proposal.ask in proposal.reason
    assert "jobs of ada" in proposal.ask and "ExcNodeList=gpu2,gpu9 StartTime=now" in proposal.ask
    assert proposal.ask.endswith("Grant it with: sacctmgr …")


def test_a_requeue_that_cannot_be_made_spends_no_requeue() -> None:
    facts = cluster(requeues_last_minute=10, **_rights(jobs_of_others=rights.NO))
    assert one(facts).outcome == "act"


def test_in_approve_mode_what_people_are_asked_about_holds_nothing_by_itself() -> None:
    admission = one(cluster(mode="approve", **_rights(jobs_of_others=rights.NO)))
    assert kinds(admission) == [actions.NOTIFY] and admission.proposal.ask is not None


@pytest.mark.parametrize("mode", ["approve", "act"])
def test_a_hold_planned_beside_a_question_waits_for_nobody_only_in_act_mode(mode: str) -> None:
    planned = propose(gpu2_lost(), NOW, POLICY)
    plans = tuple(plan for plan in planned.plans if plan.kind != actions.REQUEUE)
    asking = replace(planned, plans=plans, ask="what now?", job_event="stop")
    admission = admit([asking], cluster(mode=mode), NOW, POLICY)[0]
    assert (actions.HOLD_NODE in kinds(admission)) == (mode == "act")
    assert actions.NOTIFY in kinds(admission) and admission.proposal.ask == "what now?"


def test_our_own_jobs_need_no_right_over_others() -> None:
    own = gpu2_lost(slurm=slurm_job(user="ada"))
    for user, asked in {"ada": False, "relume": True, "": True}.items():
        facts = cluster(**_rights(job_user=user, jobs_of_others=rights.NO))
        admission = admit([propose(own, NOW, POLICY)], facts, NOW, POLICY)[0]
        assert (admission.proposal.ask is not None) == asked


def test_rights_survive_the_store_for_a_replay() -> None:
    facts = cluster(**_rights("x", update_nodes=rights.NO))
    assert cluster_from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_a_job_on_what_is_not_supported_is_only_watched() -> None:
    refusal = "unsupported: cloud nodes: …; …"
    proposal = propose(gpu2_lost(slurm=slurm_job(unsupported=(refusal,))), NOW, POLICY)
    assert proposal.ask is not None and refusal in proposal.ask
    assert [plan.kind for plan in proposal.plans] == [actions.NOTIFY] and proposal.charge == "none"


def test_commands_for_people() -> None:
    assert by_hand.requeue("7", ["gpu3"], ["gpu9", "gpu3"]) == (
        "scontrol requeuehold 7; when squeue no longer shows it COMPLETING, and 2 s later: "
        "scontrol update JobId=7 ExcNodeList=gpu3,gpu9 StartTime=now; scontrol release 7"
    )
    assert "update JobId=123_4 StartTime=now;" in by_hand.requeue("123_4", [], [])


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
