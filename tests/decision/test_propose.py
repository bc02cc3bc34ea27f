"""From facts to proposals: what is done, what is asked, what is left alone."""

from dataclasses import fields, replace
from typing import Any

import pytest

from controller.decision import actions, findings
from controller.decision.attempt_facts import EndedAttempt
from controller.decision.diagnosis import RULES
from controller.decision.facts import ActionFact, NodeFact, Spent, SubjectFacts
from controller.decision.policy import Budget
from controller.decision.propose import OUTCOME_OF_CAUSE, Proposal, propose
from tests.decision.quiet import NOW, POLICY, agent, attempt, gpu2_lost, incident, probe, rank_exit, slurm_job, subject

pytestmark = pytest.mark.pure
CAUSES = [value for name, value in vars(findings).items() if name.isupper()]


def look(facts: SubjectFacts) -> Proposal:
    return propose(facts, NOW, POLICY)


def kinds(proposal: Proposal) -> list[tuple[str, str]]:
    return [(plan.kind, plan.target) for plan in proposal.plans]


def test_every_cause_has_a_rule_and_an_outcome() -> None:
    assert set(RULES) == set(OUTCOME_OF_CAUSE) == set(CAUSES)


def test_the_budgets_names_are_those_of_the_spent_ones() -> None:
    """Besides those, what each verdict bounds by itself."""
    assert {f.name for f in fields(Budget)} == {f.name for f in fields(Spent)} - {"of_kind"}


def test_a_quiet_world_asks_for_nothing() -> None:
    assert look(subject()).empty


def test_a_lost_node_is_held_and_the_job_requeued_without_it() -> None:
    proposal = look(gpu2_lost())
    assert kinds(proposal) == [
        (actions.HOLD_NODE, "gpu2"),
        (actions.REQUEUE, "7"),
        (actions.NOTIFY, "tj-000000000001"),
    ]
    hold, requeue, _ = proposal.plans
    assert hold.params == {"adopt": False, "down": True}
    assert hold.optional
    assert requeue.params["exclude"] == ["gpu2"]
    assert requeue.params["restarts_before"] == 0
    assert (proposal.job_event, proposal.attempt_event, proposal.attempt_outcome) == ("fault", "end", "node_lost")
    assert proposal.charge == "infrastructure"


def test_somebody_elses_drain_is_adopted() -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "MIXED", frozenset({"DRAIN"}), "fan", "root")}
    assert look(gpu2_lost(nodes=nodes)).plans[0].params["adopt"] is True


def test_a_node_that_is_down_in_slurm_but_answers_is_not_set_down_by_us() -> None:
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "DOWN", reason="tested by root")}
    proposal = look(subject(nodes=nodes, probes=(probe("controller", "gpu2", "open"),)))
    assert proposal.plans[0].params["down"] is False


GPU2_DOWN = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "DOWN", reason="Not responding")}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slurm": slurm_job(requeue=False)}, "--no-requeue"),
        ({"slurm": slurm_job(batch=False)}, "batch"),
        ({"slurm": slurm_job(required_nodes=("gpu2",))}, "update JobId=7 ReqNodeList="),
        ({"slurm": slurm_job(base="PENDING", held_by="user"), "nodes": GPU2_DOWN}, "held by its owner"),
        (
            {"slurm": slurm_job(base="PENDING", held_by="admin"), "nodes": GPU2_DOWN},
            "an operator, an administrator or root",
        ),
        ({"spent": Spent(infrastructure=8)}, "budget spent: 8 of 8"),
        ({"spent": Spent(same_step=2)}, "no progress in 2 attempts"),
    ],
)
def test_when_it_must_not_requeue_it_stops_and_says_why(changes: dict[str, Any], words: str) -> None:
    proposal = look(gpu2_lost(**changes))
    assert actions.REQUEUE not in [plan.kind for plan in proposal.plans]
    assert proposal.job_event == "stop"
    assert proposal.ask is not None
    assert words in proposal.ask
    assert proposal.charge == "none"


def test_a_user_error_is_never_requeued() -> None:
    agents = (agent("gpu1", state="ending"), agent("gpu2", state="ending"))
    facts = subject(attempt=attempt(agents=agents, exits=(rank_exit(exit_code=1, signal=None),)))
    assert kinds(look(facts)) == [(actions.NOTIFY, "tj-000000000001")]


def test_a_died_process_is_requeued_without_excluding_anybody() -> None:
    agents = (agent("gpu1", state="ending"), agent("gpu2", state="ending"))
    proposal = look(subject(attempt=attempt(agents=agents, exits=(rank_exit(),))))
    assert kinds(proposal)[0] == (actions.REQUEUE, "7")
    assert proposal.plans[0].params["exclude"] == []
    assert proposal.charge == "process"


# --- a live incident -------------------------------------------------------------------------------------------


def acting(*states: str, **changes: Any) -> SubjectFacts:
    kinds = (actions.HOLD_NODE, actions.REQUEUE, actions.NOTIFY)
    rows = tuple(ActionFact(k, "x", s, optional=k != actions.REQUEUE) for k, s in zip(kinds, states, strict=False))
    gone = attempt(state="ended", agents=(agent("gpu1", 9), agent("gpu2", 9)))
    facts: dict[str, Any] = {"state": "recovering", "attempt": gone, "incident": incident(actions=rows)}
    return subject(**(facts | changes))


def test_actions_are_waited_for_then_recovery_begins() -> None:
    assert look(acting("done", "claimed", "ready")).empty
    assert look(acting("done", "done", "done")).incident_events == ("actions_done",)


def test_a_refused_hold_does_not_stop_the_recovery_but_a_refused_requeue_does() -> None:
    assert look(acting("refused", "done", "done")).incident_events == ("actions_done",)
    proposal = look(acting("done", "refused", "done"))
    assert proposal.incident_events == ("ask",)
    assert proposal.job_event == "stop"


def resumed(incident_state: str, job_state: str, **changes: Any) -> SubjectFacts:
    quiet: dict[str, Any] = {
        "generation": 2,
        "restart_count": 1,
        "state": "running",
        "start_step": 80,
        "replay_expected": True,
        "checks_passed": 4,
        "replay_passed": 4,
    }
    row = incident(state=incident_state)
    slurm = slurm_job(restarts=1)
    return subject(state=job_state, attempt=attempt(**(quiet | changes)), slurm=slurm, incident=row)


@pytest.mark.parametrize("state", ["training", "stopped"])
def test_asking_stops_a_job_only_where_it_is_not_stopped_yet(state: str) -> None:
    """A change that its table refuses would undo the asking too, at every sweep again."""
    refused = incident(actions=(ActionFact(actions.REQUEUE, "7", "refused", "no right"),))
    again = incident(state="recovering")
    ended = {"attempt": attempt(state="ended"), "slurm": slurm_job(base="FAILED", restarts=1)}
    for facts in (subject(state=state, incident=refused), subject(state=state, incident=again, **ended)):
        proposal = look(facts)
        assert (proposal.incident_events, bool(proposal.ask)) == (("ask",), True)
        assert proposal.job_event == ("stop" if state == "training" else None)


def test_first_step_begins_the_verification() -> None:
    proposal = look(resumed("recovering", "recovering", state="starting"))
    assert (proposal.incident_events, proposal.job_event, proposal.attempt_event) == (("first_step",), "verify", "step")


def test_verified_needs_every_rank_the_replay_and_a_new_step() -> None:
    assert look(resumed("verifying", "verifying")).incident_events == ("verified",)
    for missing in ({"checks_passed": 3}, {"replay_passed": 3}, {"first_new_step_seen": False}, {"world_size": None}):
        assert look(resumed("verifying", "verifying", **missing)).empty, missing


def test_without_repeated_steps_no_replay_is_waited_for() -> None:
    facts = resumed("verifying", "verifying", replay_expected=False, replay_passed=0)
    assert look(facts).incident_events == ("verified",)


def test_a_failed_verification_is_tried_once_more_from_the_checkpoint_before() -> None:
    """The ranks set the checkpoint aside; no node is held or excluded for it, and no budget pays."""
    proposal = look(resumed("verifying", "verifying", checks_failed=("random_state",)))
    assert proposal.incident_events == ("abandon",)
    assert proposal.verdict is not None
    assert (proposal.verdict.cause, proposal.verdict.exclude) == ("verification_failed", ())
    assert (proposal.job_event, proposal.charge) == ("fault", "none")
    assert (actions.REQUEUE, "7") in kinds(proposal)


@pytest.mark.parametrize(
    ("before", "asks"),
    [
        (("verification_failed",), True),
        (("process_died", "verification_failed"), True),
        (("verification_failed", "process_died"), False),
    ],
)
def test_the_second_failed_verification_in_a_row_asks(before: tuple[str, ...], asks: bool) -> None:
    facts = resumed("verifying", "verifying", checks_failed=("random_state",))
    earlier = tuple(EndedAttempt(number, outcome=outcome) for number, outcome in enumerate(before, start=1))
    proposal = look(replace(facts, attempts_before=earlier))
    assert ((actions.REQUEUE, "7") not in kinds(proposal)) == asks
    assert ("failed its verification too" in (proposal.ask or "")) == asks


def test_a_failed_verification_that_no_agent_tells_of_asks() -> None:
    slurm = slurm_job(base="FAILED", exit_code=77, exit_meaning="verification_failed")
    proposal = look(subject(attempt=None, slurm=slurm))
    assert proposal.verdict is not None and proposal.verdict.cause == "verification_failed"
    assert "no agent told" in (proposal.ask or "") and (actions.REQUEUE, "7") not in kinds(proposal)


def test_hit_again_while_recovering_opens_the_next_incident() -> None:
    facts = resumed("recovering", "recovering", agents=gpu2_lost().attempt.agents)  # type: ignore[union-attr]
    proposal = look(replace(facts, probes=gpu2_lost().probes))
    assert proposal.incident_events == ("abandon",)
    assert proposal.verdict is not None
    assert (actions.REQUEUE, "7") in kinds(proposal)


def test_a_user_cancel_ends_it_at_any_moment() -> None:
    for state in ("acting", "recovering", "verifying", "awaiting_operator"):
        facts = acting("done", "claimed", slurm=slurm_job(base="CANCELLED"))
        facts = replace(facts, incident=replace(facts.incident, state=state))  # type: ignore[type-var]
        proposal = look(facts)
        assert proposal.job_event == "cancel", state
        assert proposal.plans == ()


def test_a_script_without_agents_is_back_when_slurm_runs_it_again() -> None:
    facts = subject(
        state="recovering",
        attempt=None,
        slurm=slurm_job(restarts=1),
        incident=incident(state="recovering", generation=None),
    )
    proposal = look(facts)
    assert proposal.incident_events == ("recovered_unverified",)
    assert proposal.job_event == "train"
