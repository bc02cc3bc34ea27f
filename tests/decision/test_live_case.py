"""A live training job's facts as the case that diagnosis is asked about."""

from dataclasses import replace

import pytest

from controller.decision.attempt_facts import EndedAttempt, LearnedPace
from controller.decision.evidence import JOB, Evidence
from controller.decision.live_case import case_of
from controller.decision.losses import LossState, NotFinite, Spike
from tests.decision.quiet import NOW, POLICY, attempt, slurm_job, subject

pytestmark = pytest.mark.pure
HERE = ("gpu1", "gpu2")
LINE = Evidence("sign:1", "cuda.ecc", "process", "job_log", JOB, "uncorrectable ECC error", at=NOW, node="gpu2", rank=2)


def test_evidence_and_the_policys_trust_go_along() -> None:
    known = subject(evidence=(LINE,), rank_nodes={2: "gpu2"}, unreadable=frozenset({"kernel"}))
    case = case_of(known, NOW, POLICY)
    assert (case.evidence, case.rank_nodes, case.unreadable, case.nodes) == ((LINE,), {2: "gpu2"}, {"kernel"}, HERE)
    assert not case.trusted and case_of(known, NOW, replace(POLICY, trust_job_evidence=True)).trusted


def test_no_step_is_told_from_an_unknown_one() -> None:
    assert case_of(subject(), NOW, POLICY).last_step == 100
    assert case_of(subject(attempt=attempt(step=None)), NOW, POLICY).last_step == 0
    assert case_of(subject(attempt=attempt(step=None, agents=())), NOW, POLICY).last_step is None
    resumed = subject(attempt=attempt(step=None), attempts_before=(EndedAttempt(1, 0, 90, "process_died", HERE),))
    assert case_of(resumed, NOW, POLICY).last_step == 90


def test_failures_in_a_row_without_progress_are_counted() -> None:
    died = EndedAttempt(1, 0, 100, "process_died", HERE)
    again = EndedAttempt(2, 90, 100, "user_error", HERE)
    assert case_of(subject(attempts_before=(died, again)), NOW, POLICY).same_before == 2
    preempted = replace(again, outcome="preempted")
    assert case_of(subject(attempts_before=(died, preempted)), NOW, POLICY).same_before == 0
    assert case_of(subject(attempts_before=(replace(died, step=40), again)), NOW, POLICY).same_before == 1


def test_a_cancelled_job_was_ended_by_somebody() -> None:
    assert case_of(subject(slurm=slurm_job(base="CANCELLED")), NOW, POLICY).cancelled_by_user
    assert not case_of(subject(), NOW, POLICY).cancelled_by_user


def test_what_the_run_itself_shows_is_weighed_too() -> None:
    shown = attempt(
        learned={"step": LearnedPace(500, 0.6, 40.0, recent_s=37.0)},
        loss=LossState(last_step=99, bad_since=90, bad_steps=10, spikes=(Spike(5, 9.0, 2.0),)),
        not_finite=(NotFinite(3, "grad_norm", 77),),
    )
    found = case_of(subject(evidence=(LINE,), attempt=shown), NOW, POLICY).evidence
    codes = ["cuda.ecc", "progress.slow", "loss.not_finite", "loss.not_finite", "loss.spike"]
    assert [piece.code for piece in found] == codes and len({piece.id for piece in found}) == 5
    assert found == case_of(subject(evidence=(LINE,), attempt=shown), NOW, POLICY).evidence
