"""Starts that failed: which node is named, which is only kept away, which is held, how long the job waits, and when a
person is asked. The texts are those of real Slurm."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision import actions
from controller.decision.facts import ActionFact, LaunchFact, NodeFact, SchedulerFact, Spent, StartFact, SubjectFacts
from controller.decision.policy import Launch
from controller.decision.propose import Proposal, propose
from controller.decision.relaunch import CAUSES, backoff
from tests.decision.quiet import NOW, POLICY, agent, attempt, incident, slurm_job, subject

pytestmark = pytest.mark.pure

RUN = "tj-000000000001"
HELD = "launch_failed_requeued_held"


def look(facts: SubjectFacts, policy: Any = POLICY) -> Proposal:
    return propose(facts, NOW, policy)


def start(host: str = "gpu2", restarts: int = 0, **changes: Any) -> StartFact:
    return replace(StartFact(restarts, host, (host,), NOW - 4), **changes)


def held(reason: str = HELD, held_by: str = "launch-failed", **changes: Any) -> SubjectFacts:
    """The first start of the job failed on gpu2; Slurm holds it. `slurm` states what differs there."""
    pending = {
        "base": "PENDING",
        "nodes": (),
        "restarts": 1,
        "reason": reason,
        "held_by": held_by,
        "submit_at": NOW - 1,
    }
    job = slurm_job(**(pending | changes.pop("slurm", {})))
    quiet: dict[str, Any] = {"state": "queued", "attempt": None, "slurm": job, "last_start": start()}
    return subject(**(quiet | changes))


def before(host: str = "gpu2", run: str = RUN, age_s: float = 100.0, **changes: Any) -> LaunchFact:
    return replace(LaunchFact(run, "slurm_infra", "launch_failed", (host,), 0, NOW - age_s), **changes)


def plans(proposal: Proposal) -> list[tuple[str, str]]:
    return [(plan.kind, plan.target) for plan in proposal.plans if plan.kind != actions.NOTIFY]


def requeue(proposal: Proposal) -> actions.ActionPlan:
    return next(plan for plan in proposal.plans if plan.kind == actions.REQUEUE)


# --- the first failure ----------------------------------------------------------------------------------------


def test_the_first_failure_keeps_the_batch_host_away_and_waits() -> None:
    proposal = look(held())
    assert proposal.verdict is not None and proposal.verdict.suspects == ("gpu2",)
    assert (proposal.verdict.cause, proposal.charge) == ("slurm_infra", "infrastructure")
    assert plans(proposal) == [(actions.REQUEUE, "7")], "excluded, not held: once is no proof about the node"
    plan = requeue(proposal)
    assert plan.params["exclude"] == ["gpu2"]
    assert plan.params["restarts_before"] == 0, "the start that failed, which Slurm has counted already"
    assert plan.delay_s == 30.0 and "waits 30 s" in plan.reason
    assert proposal.job_event == "fault"


@pytest.mark.parametrize(
    ("reason", "held_by", "cause"),
    [
        ("launch failed requeued held", "launch-failed", "slurm_infra"),
        (HELD, "launch-failed", "slurm_infra"),
        ("user_env_retrieval_failed_requeued_held", "launch-failed", "start_failed"),
        ("user env retrieval failed requeued held", "launch-failed", "start_failed"),
        ("launch failure limit exceeded requeued held", "requeue-limit", "launch_limit"),
        ("JobHoldMaxRequeue", "requeue-limit", "launch_limit"),
    ],
)
def test_both_spellings_of_every_hold(reason: str, held_by: str, cause: str) -> None:
    verdict = look(held(reason, held_by)).verdict
    assert verdict is not None and (verdict.cause, verdict.suspects) == (cause, ("gpu2",))


@pytest.mark.parametrize("held_by", ["user", "admin", "requeue-hold", "special-exit", None])
def test_other_holds_are_no_failed_launch(held_by: str | None) -> None:
    assert look(held("JobHeldUser", held_by)).verdict is None  # type: ignore[arg-type]


def test_the_batch_host_that_slurm_still_shows_wins_over_what_was_seen() -> None:
    facts = held(slurm={"batch_host": "gpu3"})
    verdict = look(facts).verdict
    assert verdict is not None and verdict.suspects == ("gpu3",)


def test_an_older_start_names_nobody() -> None:
    facts = held(slurm={"restarts": 3}, last_start=start(restarts=0))
    proposal = look(facts)
    assert proposal.verdict is not None and proposal.verdict.suspects == ()
    assert requeue(proposal).params["exclude"] == [] and "does not say on which node" in proposal.verdict.reason


def test_accounting_gets_its_time_to_say_where() -> None:
    asked = held(last_start=None, scheduler=SchedulerFact(accounting=True))
    assert look(asked).verdict is None
    assert propose(asked, NOW + 8, POLICY).verdict is not None, "it waits no longer than that"
    assert look(replace(asked, last_start=start())).verdict is not None


def test_the_node_that_slurm_drained_for_it_is_named_and_not_the_batch_host() -> None:
    """A Prolog failed on the second node of the job: Slurm says so at the node itself."""
    nodes = dict(subject().nodes)
    nodes["gpu3"] = NodeFact("gpu3", "IDLE", frozenset({"DRAIN"}), "Prolog error", "slurm", reason_at=NOW - 1.4)
    verdict = look(held(nodes=nodes)).verdict
    assert verdict is not None and verdict.suspects == ("gpu3",)
    assert any(clue.code == "drained_by_slurm" and "Prolog error" in clue.raw for clue in verdict.clues)
    older = nodes | {"gpu3": replace(nodes["gpu3"], reason_at=NOW - 300)}
    people = nodes | {"gpu3": replace(nodes["gpu3"], reason="fan is loud, prolog error maybe")}
    for other in (older, people):
        verdict = look(held(nodes=other)).verdict
        assert verdict is not None and verdict.suspects == ("gpu2",)


@pytest.mark.parametrize(
    ("slurm", "cause"),
    [
        # 22.05 says JobLaunchFailure of every batch script that died of a signal.
        ({"base": "FAILED", "reason": "JobLaunchFailure", "exit_code": 0, "exit_signal": 9}, "process_died"),
        ({"base": "FAILED", "reason": "JobLaunchFailure", "exit_code": 0, "exit_signal": 53}, "user_error"),
        ({"base": "FAILED", "reason": "NonZeroExitCode", "exit_code": 1}, "user_error"),
        ({"base": "FAILED", "reason": "NonZeroExitCode", "exit_code": 127}, "user_error"),
    ],
)
def test_a_script_that_fails_at_once_is_its_owners(slurm: dict[str, Any], cause: str) -> None:
    job = slurm_job(**slurm, start_at=NOW - 3, end_at=NOW - 3, batch_host="gpu1")
    proposal = look(subject(state="starting", attempt=None, slurm=job, last_start=start("gpu1")))
    assert proposal.verdict is not None and proposal.verdict.cause == cause
    assert actions.HOLD_NODE not in dict(plans(proposal)) and proposal.verdict.exclude == ()


def at_once(exit_code: int = 1, exit_signal: int = 0, **changes: Any) -> SubjectFacts:
    """It trained on its first start; the second ended in the second in which it began."""
    ended = {"base": "FAILED", "restarts": 1, "exit_code": exit_code, "exit_signal": exit_signal, "batch_host": "gpu3"}
    job = slurm_job(**ended, nodes=("gpu3",), start_at=NOW - 5, end_at=NOW - 5)
    quiet: dict[str, Any] = {"state": "queued", "attempt": attempt(state="ended"), "slurm": job}
    return subject(**(quiet | changes))


@pytest.mark.parametrize(("code", "sent"), [(1, 0), (0, 53)])
def test_a_script_that_has_trained_before_is_not_blamed_for_ending_at_once(code: int, sent: int) -> None:
    proposal = look(at_once(code, sent))
    assert proposal.verdict is not None and proposal.verdict.cause == "start_failed"
    assert requeue(proposal).params["exclude"] == ["gpu3"] and requeue(proposal).params["restarts_before"] == 1
    assert actions.HOLD_NODE not in dict(plans(proposal))


@pytest.mark.parametrize(("code", "sent"), [(2, 0), (127, 0), (75, 0)])
def test_other_ends_at_once_are_the_scripts_own(code: int, sent: int) -> None:
    verdict = look(at_once(code, sent)).verdict
    assert verdict is not None and verdict.cause != "start_failed"


def test_ending_at_once_on_two_nodes_is_not_the_nodes() -> None:
    earlier = before("gpu1", cause="start_failed", code="ended_at_once", restarts=1)
    facts = at_once(launches=(earlier,))
    proposal = look(replace(facts, slurm=replace(facts.slurm, restarts=2)))  # type: ignore[type-var]
    assert proposal.verdict is not None and proposal.verdict.cause == "user_error"
    assert plans(proposal) == []


@pytest.mark.parametrize("base", ["CANCELLED", "COMPLETED", "PREEMPTED", "TIMEOUT", "DEADLINE"])
def test_what_people_or_slurm_ended_is_no_failed_launch(base: str) -> None:
    facts = held(slurm={"base": base, "held_by": None}, launches=(before(),))
    proposal = look(facts)
    assert proposal.verdict is None or proposal.verdict.cause not in ("slurm_infra", "start_failed", "launch_limit")


# --- launches that no node took -------------------------------------------------------------------------------


def given_up(flags: frozenset[str] = frozenset({"NOT_RESPONDING"}), **changes: Any) -> SubjectFacts:
    """Slurm queued the job again by itself; gpu2 did not answer."""
    nodes = dict(subject().nodes) | {"gpu2": NodeFact("gpu2", "MIXED", flags)}
    slurm = {"held_by": None, "base": "UNKNOWN", "flags": frozenset({"COMPLETING"}), "reason": ""}
    return held(slurm=slurm | changes.pop("slurm", {}), nodes=nodes, **changes)


def test_a_launch_that_the_host_did_not_take() -> None:
    proposal = look(given_up())
    assert proposal.verdict is not None and proposal.verdict.cause == "slurm_infra"
    assert requeue(proposal).params["exclude"] == ["gpu2"] and requeue(proposal).params["restarts_before"] == 0


def test_a_requeue_by_a_person_blames_nobody() -> None:
    assert look(given_up(frozenset())).verdict is None, "the host answers: somebody requeued the job"
    long_ago = start(start_at=NOW - 600)
    assert look(given_up(last_start=long_ago)).verdict is None, "it ran: it had been launched"
    spoke = attempt(restart_count=0, state="ended")
    assert look(given_up(attempt=spoke)).verdict is None, "its agents spoke: it had been launched"


@pytest.mark.parametrize(("earlier", "limit", "warned"), [(3, 5, True), (2, 5, False), (0, 5, False), (0, 2, True)])
def test_the_last_failure_before_slurms_own_limit_is_announced(earlier: int, limit: int, warned: bool) -> None:
    row = tuple(before(f"n{i}", code="launch_refused", restarts=i) for i in range(earlier))
    verdict = look(given_up(launches=row, scheduler=SchedulerFact(max_batch_requeue=limit))).verdict
    assert verdict is not None and (f"MaxBatchRequeue={limit}" in verdict.reason) is warned


def test_a_node_that_did_not_boot() -> None:
    ended = {"base": "BOOT_FAIL", "held_by": None, "restarts": 0, "end_at": NOW - 2}
    one = look(held(slurm=ended | {"nodes": ("gpu2",), "num_nodes": 1}, last_start=None)).verdict
    assert one is not None and (one.cause, one.suspects) == ("slurm_infra", ("gpu2",))
    nodes = dict(subject().nodes) | {"gpu1": NodeFact("gpu1", "MIXED", frozenset({"NOT_RESPONDING"}))}
    two = look(held(slurm=ended | {"nodes": ("gpu1", "gpu2")}, last_start=None, nodes=nodes)).verdict
    assert two is not None and two.suspects == ("gpu1",)
    unknown = look(held(slurm=ended | {"nodes": ("gpu1", "gpu2"), "batch_host": "gpu1"}, last_start=None)).verdict
    assert unknown is not None and unknown.suspects == (), (
        "the batch host is only one of those that may not have booted"
    )


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
