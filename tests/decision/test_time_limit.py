"""Time limits, deadlines and preemption: nobody's fault, charged apart, and never against anybody's will."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decision import actions
from controller.decision.facts import Spent, SubjectFacts
from controller.decision.policy import Budget
from controller.decision.propose import Proposal, propose
from tests.decision.quiet import NOW, POLICY, agent, attempt, rank_exit, slurm_job, subject

pytestmark = pytest.mark.pure


def look(facts: SubjectFacts, budget: Budget | None = None) -> Proposal:
    return propose(facts, NOW, replace(POLICY, budget=budget) if budget else POLICY)


def timed_out(**changes: Any) -> SubjectFacts:
    """The fourth start of the job trained on and reached its limit; its agents said goodbye."""
    job = slurm_job(base="TIMEOUT", reason="TimeLimit", restarts=3, exit_signal=15, time_limit_s=3600.0)
    agents = (agent("gpu1", state="ended"), agent("gpu2", state="ended"))
    row = attempt(generation=4, restart_count=3, agents=agents, **changes.pop("attempt", {}))
    slurm = replace(job, **changes.pop("slurm", {}))
    return subject(**({"slurm": slurm, "attempt": row} | changes))


def plans(proposal: Proposal) -> list[tuple[str, str]]:
    return [(plan.kind, plan.target) for plan in proposal.plans if plan.kind != actions.NOTIFY]


def test_a_run_that_got_further_goes_on() -> None:
    proposal = look(timed_out())
    assert plans(proposal) == [(actions.REQUEUE, "7")]
    assert proposal.verdict is not None and proposal.verdict.suspects == proposal.verdict.exclude == ()
    assert (proposal.charge, proposal.attempt_outcome) == ("time_limit", "time_limit")
    assert next(plan for plan in proposal.plans).params["restarts_before"] == 3
    assert "60 min" in proposal.verdict.reason and "start 4" in proposal.verdict.reason


def test_starts_of_earlier_slurm_jobs_are_counted_too() -> None:
    proposal = look(timed_out(starts_before=5))
    assert proposal.verdict is not None and "start 9" in proposal.verdict.reason


def test_ranks_that_slurm_ended_for_it_did_not_die_by_themselves() -> None:
    """SIGTERM at the limit: while Slurm still clears up, it has not said why."""
    exits = (rank_exit(signal=15, at=NOW - 5),)
    clearing = {"base": "UNKNOWN", "flags": frozenset({"COMPLETING"})}
    assert look(timed_out(attempt={"exits": exits}, slurm=clearing)).verdict is None
    both = look(timed_out(attempt={"exits": exits}, slurm={"flags": frozenset({"COMPLETING"})}))
    assert both.verdict is None, "newer versions say TIMEOUT and COMPLETING: wait until it is clear of its nodes"
    verdict = look(timed_out(attempt={"exits": exits})).verdict
    assert verdict is not None and verdict.cause == "time_limit"


def test_no_new_step_in_all_of_the_time_asks() -> None:
    proposal = look(timed_out(attempt={"first_new_step_seen": False}))
    assert plans(proposal) == [] and proposal.ask is not None and "no new step" in proposal.ask
    first = attempt(generation=1, first_new_step_seen=False)
    facts = timed_out(slurm={"restarts": 0})
    assert plans(look(replace(facts, attempt=first))) != [], "the first attempt's steps are all new"


def test_without_an_agent_it_goes_on_only_so_often() -> None:
    blind = timed_out(attempt={})
    blind = replace(blind, attempt=attempt(agents=(), generation=4, restart_count=3, first_step_seen=False))
    assert plans(look(blind)) != []
    often = replace(blind, spent=Spent(time_limit=2))
    assert plans(look(often)) == [] and "no agent" in (look(often).ask or "")
    assert plans(look(replace(timed_out(), spent=Spent(time_limit=2)))) != [], "with an agent progress is known"


def test_the_cap_and_the_switch() -> None:
    assert plans(look(replace(timed_out(), spent=Spent(time_limit=50)))) == []
    assert plans(look(timed_out(), Budget(time_limit=0))) == []


def test_the_other_budgets_do_not_pay_for_it() -> None:
    spent = Spent(infrastructure=8, process=3, user=5)
    assert plans(look(replace(timed_out(), spent=spent))) == [(actions.REQUEUE, "7")]
    died = subject(
        attempt=attempt(agents=(agent("gpu1", state="ending"), agent("gpu2", state="ending")), exits=(rank_exit(),))
    )
    assert plans(look(replace(died, spent=Spent(time_limit=50)))) == [(actions.REQUEUE, "7")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slurm": {"requeue": False}}, "submit it again"),
        ({"slurm": {"batch": False}}, "salloc"),
        ({"enrolled": False}, "not enrolled"),
        ({"spent": Spent(same_step=2)}, "no progress in 2 attempts"),
    ],
)
def test_what_forbids_it(changes: dict[str, Any], words: str) -> None:
    proposal = look(timed_out(**changes))
    assert plans(proposal) == [] and proposal.ask is not None and words in proposal.ask


def test_a_deadline_is_the_users_own() -> None:
    proposal = look(timed_out(slurm={"base": "DEADLINE"}))
    assert proposal.verdict is not None and proposal.verdict.cause == "deadline"
    assert plans(proposal) == [] and proposal.charge == "none"


# --- preemption ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requeued", [{"base": "PENDING", "reason": "BeginTime"}, {"base": "PENDING", "reason": "Priority"}]
)
def test_slurm_queued_a_preempted_job_again_and_nobody_else_does(requeued: dict[str, Any]) -> None:
    job = slurm_job(**requeued, restarts=1, nodes=())
    gone = attempt(agents=(agent("gpu1", 30.0), agent("gpu2", 30.0)), exits=(rank_exit(signal=15),))
    proposal = look(subject(attempt=gone, slurm=job))
    assert proposal.verdict is None and proposal.plans == () and proposal.charge == "none"
    assert (proposal.job_event, proposal.attempt_event) == ("queue", "end")


def preempted(age_s: float, **slurm: Any) -> SubjectFacts:
    job = slurm_job(base="PREEMPTED", end_at=NOW - age_s, **slurm)
    return subject(state="queued", attempt=attempt(state="ended"), slurm=job)


def test_preempted_for_good_asks_and_charges_nothing() -> None:
    assert look(preempted(5)).verdict is None, "Slurm may be about to queue it again"
    assert look(preempted(60, flags=frozenset({"COMPLETING"}))).verdict is None
    proposal = look(preempted(60))
    assert proposal.verdict is not None and proposal.verdict.cause == "preempted"
    assert plans(proposal) == [] and proposal.charge == "none"
    assert proposal.ask is not None and "scontrol requeue 7" in proposal.ask


@given(
    base=st.sampled_from(["TIMEOUT", "DEADLINE", "CANCELLED", "COMPLETED", "PREEMPTED"]),
    spent=st.integers(0, 60),
    progress=st.booleans(),
    cap=st.integers(0, 60),
)
def test_time_is_only_ever_charged_to_its_own_budget(base: str, spent: int, progress: bool, cap: int) -> None:
    facts = timed_out(attempt={"first_new_step_seen": progress}, slurm={"base": base, "end_at": NOW - 60})
    proposal = look(replace(facts, spent=Spent(time_limit=spent)), Budget(time_limit=cap))
    goes_on = (actions.REQUEUE, "7") in plans(proposal)
    assert goes_on == (base == "TIMEOUT" and progress and spent < cap)
    assert proposal.charge == ("time_limit" if goes_on else "none")
    assert all(plan.kind != actions.HOLD_NODE for plan in proposal.plans)
