"""Starts that failed: which node is named, and which is only kept away. The texts are those of real Slurm."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision import actions
from controller.decision.facts import NodeFact, SubjectFacts
from controller.decision.launch_facts import SchedulerFact
from controller.decision.propose import propose
from tests.decision.launches import HELD, before, held, look, plans, requeue, start
from tests.decision.quiet import NOW, POLICY, attempt, slurm_job, subject

pytestmark = pytest.mark.pure


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
