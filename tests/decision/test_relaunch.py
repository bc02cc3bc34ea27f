"""After a start that failed: which node is held, how long the job waits, and when a person is asked."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision import actions
from controller.decision.facts import ActionFact, Spent
from controller.decision.launch_facts import LaunchFact, StartFact
from controller.decision.policy import Launch
from controller.decision.relaunch import CAUSES, backoff
from tests.decision.launches import RUN, before, held, look, plans, requeue, start
from tests.decision.quiet import NOW, POLICY, agent, attempt, incident, slurm_job, subject

pytestmark = pytest.mark.pure


# --- the second failure ---------------------------------------------------------------------------------------


def test_the_second_failure_of_the_job_on_a_node_holds_it_and_stops_the_job() -> None:
    """The only free node rejects every launch: the exclusion could not stand, so the start went there again."""
    facts = held(slurm={"restarts": 2}, last_start=start(restarts=1), launches=(before(),))
    proposal = look(facts)
    assert plans(proposal) == [(actions.HOLD_NODE, "gpu2")]
    assert proposal.job_event == "stop" and proposal.charge == "none"
    assert proposal.ask is not None and "scontrol release 7" in proposal.ask


def test_the_second_failure_there_by_another_job_holds_the_node_and_goes_on() -> None:
    proposal = look(held(launches=(before(run="tj-other"),)))
    assert plans(proposal) == [(actions.HOLD_NODE, "gpu2"), (actions.REQUEUE, "7")]
    assert proposal.ask is None and requeue(proposal).delay_s == 30.0, "the first of this job"


def test_the_second_failure_elsewhere_goes_on_and_waits_twice_as_long() -> None:
    facts = held(slurm={"restarts": 2}, last_start=start("gpu3", restarts=1), launches=(before("gpu2"),))
    proposal = look(facts)
    assert plans(proposal) == [(actions.REQUEUE, "7")]
    assert requeue(proposal).delay_s == 60.0 and requeue(proposal).params["exclude"] == ["gpu3"]


def test_what_the_job_went_through_before_it_trained_does_not_count() -> None:
    trained = attempt(state="ended", restart_count=1)
    facts = held(slurm={"restarts": 3}, last_start=start(restarts=2), attempt=trained, launches=(before(),))
    proposal = look(facts)
    assert proposal.ask is None and requeue(proposal).delay_s == 30.0


def test_one_job_that_fails_everywhere_holds_no_node() -> None:
    row = (before("gpu2"), before("gpu3", restarts=1))
    facts = held(slurm={"restarts": 3}, last_start=start(restarts=2), launches=row)
    assert plans(look(facts)) == []


def test_many_nodes_at_once_are_not_the_nodes() -> None:
    others = tuple(before(f"n{i}", run=f"tj-{i}", age_s=60) for i in range(3))
    proposal = look(held(launches=(*others, before(run="tj-x"))))
    assert plans(proposal) == [(actions.REQUEUE, "7")], "what they share has failed"


@pytest.mark.parametrize("cause", ["start_failed"])
def test_what_only_looks_like_it_never_holds(cause: str) -> None:
    assert plans(look(held(launches=(before(run="tj-x", cause=cause),)))) == [(actions.REQUEUE, "7")]
    env = held("user_env_retrieval_failed_requeued_held", launches=(before(run="tj-x"),))
    assert plans(look(env)) == [(actions.REQUEUE, "7")], "an owner's environment is no proof about a node"


def test_an_unknown_host_twice_stops() -> None:
    facts = held(slurm={"restarts": 2}, last_start=None, launches=(before(hosts=()),))
    proposal = look(facts)
    assert plans(proposal) == [] and proposal.ask is not None and "does not say where" in proposal.ask


def test_slurms_limit_stops_unless_the_site_lets_it_be_lifted_once() -> None:
    facts = held("JobHoldMaxRequeue", "requeue-limit")
    stopped = look(facts)
    assert plans(stopped) == [] and stopped.ask is not None and "scontrol release 7" in stopped.ask
    lifting = replace(POLICY, launch=Launch(release_at_limit=True))
    assert plans(look(facts, lifting)) == [(actions.REQUEUE, "7")]
    again = replace(facts, launches=(before("gpu1", cause="launch_limit", code="requeue_limit"),))
    assert plans(look(again, lifting)) == [] and look(again, lifting).ask is not None


# --- what forbids it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enrolled": False}, "not enrolled"),
        ({"slurm": {"requeue": False}}, "Requeue=1"),
        ({"slurm": {"batch": False}}, "salloc"),
        ({"slurm": {"required_nodes": ("gpu2",)}}, "ReqNodeList="),
        ({"spent": Spent(infrastructure=8)}, "budget spent"),
    ],
)
def test_nothing_is_written_where_it_is_forbidden(changes: dict[str, Any], words: str) -> None:
    proposal = look(held(**changes))
    assert plans(proposal) == [] and proposal.ask is not None and words in proposal.ask


# --- with a live incident -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["recovering", "awaiting_operator"])
def test_a_later_start_that_fails_is_a_new_incident(state: str) -> None:
    live = incident(state=state, cause="node_lost", generation=1, restarts=0)
    again = held(slurm={"restarts": 2}, last_start=start("gpu3", restarts=1), state="recovering", incident=live)
    proposal = look(again)
    assert proposal.incident_events == ("abandon",) and requeue(proposal).params["exclude"] == ["gpu3"]


@pytest.mark.parametrize("state", ["recovering", "awaiting_operator", "acting"])
def test_the_same_failed_start_is_not_found_twice(state: str) -> None:
    live = incident(state=state, cause="slurm_infra", generation=None, restarts=0)
    assert look(held(state="stopped" if state == "awaiting_operator" else "recovering", incident=live)).verdict is None


def test_a_hold_that_is_done_ends_in_the_question_that_it_was_planned_with() -> None:
    done = tuple(replace(row, state="done") for row in _rows(actions.HOLD_NODE, actions.NOTIFY))
    live = incident(cause="slurm_infra", generation=None, ask="look at gpu2", actions=done)
    proposal = look(held(state="stopped", incident=live))
    assert proposal.incident_events == ("ask",) and proposal.ask == "look at gpu2"


def _rows(*kinds: str) -> tuple[ActionFact, ...]:
    return tuple(ActionFact(kind, "x", "ready", optional=True) for kind in kinds)


# --- for any history ------------------------------------------------------------------------------------------


@given(st.integers(0, 2000), st.floats(30, 600), st.floats(600, 1e6))
def test_the_back_off_only_grows_and_has_its_bounds(count: int, first: float, most: float) -> None:
    policy = Launch(backoff_s=first, backoff_max_s=most)
    now, then = backoff(count, policy), backoff(count + 1, policy)
    assert 30 <= first <= now <= then <= most
    assert then == min(2 * now, most) or count > 30


launch_facts = st.lists(
    st.builds(
        LaunchFact,
        run_id=st.sampled_from([RUN, "tj-a", "tj-b"]),
        cause=st.sampled_from(["slurm_infra", "start_failed", "launch_limit"]),
        code=st.sampled_from(["launch_failed", "launch_refused"]),
        hosts=st.lists(st.sampled_from(["gpu1", "gpu2", "gpu3"]), max_size=2, unique=True).map(tuple),
        restarts=st.integers(0, 5),
        at=st.floats(NOW - 200_000, NOW),
    ),
    max_size=8,
)
starts = st.builds(StartFact, st.integers(0, 5), st.sampled_from(["gpu1", "gpu2"]), st.just(()), st.just(NOW - 3))


@given(
    launches=launch_facts,
    hold=st.sampled_from(["launch-failed", "requeue-limit", "user", None]),
    base=st.sampled_from(["PENDING", "FAILED", "CANCELLED", "COMPLETED", "BOOT_FAIL", "UNKNOWN"]),
    restarts=st.integers(0, 6),
    last=st.none() | starts,
    spent=st.integers(0, 10),
    code=st.integers(0, 2),
    trained=st.booleans(),
)
def test_whatever_the_history_nodes_and_budgets_are_safe(
    launches: list[LaunchFact],
    hold: str | None,
    base: str,
    restarts: int,
    last: StartFact | None,
    spent: int,
    code: int,
    trained: bool,
) -> None:
    job = slurm_job(
        base=base, held_by=hold, restarts=restarts, exit_code=code, start_at=NOW - 2, end_at=NOW - 2, submit_at=NOW - 2
    )
    earlier = attempt(state="ended", agents=(agent("gpu1"),)) if trained else None
    facts = subject(
        state="queued",
        attempt=earlier,
        slurm=job,
        last_start=last,
        launches=tuple(launches),
        spent=Spent(infrastructure=spent, process=spent, time_limit=spent),
    )
    proposal = look(facts)
    found = dict(plans(proposal))
    if actions.REQUEUE in found:
        assert base not in ("CANCELLED", "COMPLETED"), "a person's will"
        assert hold != "user" or base != "PENDING"
        assert proposal.charge == "none" or spent < getattr(POLICY.budget, proposal.charge), "the budget is spent"
        assert proposal.verdict is not None
        # BOOT_FAIL of a start whose agents spoke is a failed node, and no failed launch.
        failed_launch = proposal.verdict.cause in CAUSES and proposal.charge == "infrastructure"
        assert not failed_launch or requeue(proposal).delay_s >= 30
    for name in (target for kind, target in plans(proposal) if kind == actions.HOLD_NODE):
        sure = [each for each in launches if each.cause != "start_failed" and name in each.hosts]
        assert sure, "one failure alone holds no node"
        assert proposal.verdict is not None and proposal.verdict.cause in ("slurm_infra", "launch_limit")
