"""Slurm's own restarts, ended attempts and unenrolled jobs: nothing is blamed on what is history."""

from dataclasses import replace

import pytest

from controller.decision.attempt_facts import RankExit
from controller.decision.facts import IncidentFact, NodeFact
from controller.decision.propose import propose
from tests.decision.quiet import NOW, POLICY, agent, attempt, slurm_job, subject

pytestmark = pytest.mark.pure

KILLED = RankExit(rank=1, node="gpu1", exit_code=None, signal=9, at=NOW - 10)


def test_a_job_that_slurm_requeued_did_not_lose_a_process() -> None:
    ended = attempt(exits=(KILLED,), agents=(agent("gpu1", 6.0), agent("gpu2", 6.0)))
    proposal = propose(subject(attempt=ended, slurm=slurm_job(restarts=1, base="PENDING")), NOW, POLICY)
    assert (proposal.verdict, proposal.attempt_event, proposal.attempt_outcome) == (None, "end", "requeued")
    assert proposal.job_event == "queue"


def test_silence_of_an_ended_attempt_is_no_suspicion() -> None:
    quiet = attempt(state="ended", agents=(agent("gpu1", 60.0), agent("gpu2", 60.0)))
    assert propose(subject(state="queued", attempt=quiet), NOW, POLICY).suspicion is None


def test_a_node_of_an_ended_attempt_may_go_down() -> None:
    nodes = {"gpu2": NodeFact("gpu2", "DOWN")}
    waiting = slurm_job(base="PENDING", nodes=(), restarts=1)
    facts = subject(state="queued", attempt=attempt(state="ended"), slurm=waiting, nodes=nodes)
    assert propose(facts, NOW, POLICY).verdict is None
    again = propose(replace(facts, slurm=slurm_job(restarts=1)), NOW, POLICY)
    assert again.verdict is not None and again.verdict.suspects == ("gpu2",)
    assert next(p for p in again.plans if p.kind == "requeue_excluding").params["restarts_before"] == 1


def test_a_job_that_is_not_enrolled_is_only_watched() -> None:
    facts = subject(enrolled=False, nodes={"gpu2": NodeFact("gpu2", "DOWN")})
    proposal = propose(facts, NOW, POLICY)
    assert [plan.kind for plan in proposal.plans] == ["notify"]
    assert proposal.ask is not None and "not enrolled" in proposal.ask


def _recovering(**changes: object) -> IncidentFact:
    base = IncidentFact(1, "recovering", "node_down", None, 0)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_script_without_agent_is_back_when_slurm_runs_it_again() -> None:
    quiet = attempt(generation=2, restart_count=1, agents=(), first_step_seen=False)
    facts = subject(state="recovering", attempt=quiet, slurm=slurm_job(restarts=1), incident=_recovering())
    assert propose(facts, NOW, POLICY).incident_events == ("recovered_unverified",)


def test_a_requeued_job_that_ends_before_it_spoke_asks() -> None:
    slurm = slurm_job(restarts=1, base="FAILED", exit_code=1)
    facts = subject(state="recovering", attempt=attempt(state="ended"), slurm=slurm)
    proposal = propose(replace(facts, incident=_recovering(generation=1)), NOW, POLICY)
    assert proposal.incident_events == ("ask",) and proposal.job_event == "stop"
    assert proposal.ask is not None and "FAILED" in proposal.ask
