"""Losses that stay no numbers: a person is asked beside a run that goes on, and only a second sign names a node."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decision import actions
from controller.decision.assess import assess
from controller.decision.detectors import detect
from controller.decision.diagnosis import diagnose
from controller.decision.evidence import JOB, SENSOR, Evidence
from controller.decision.facts import PastFault, Spent, SubjectFacts
from controller.decision.findings import GPU_HARDWARE, NODE_LOST, NOT_FINITE, PROCESS_DIED, Finding
from controller.decision.incident import GOES_ON, INCIDENT
from controller.decision.live_case import case_of
from controller.decision.loss_faults import AGAIN_S
from controller.decision.losses import LossState, NotFinite, Spike, fold
from controller.decision.policy import Loss
from controller.decision.propose import Proposal, propose
from tests.decision.given import knowledge
from tests.decision.quiet import NOW, POLICY, attempt, gpu2_lost, incident, rank_exit, slurm_job, subject

pytestmark = pytest.mark.pure
KNOWING = replace(POLICY, knowledge=knowledge())
NAN = float("nan")
LOST = fold(LossState(), [(step, 2.0) for step in range(1, 80)] + [(step, NAN) for step in range(80, 101)])
ASKING = incident(state="awaiting_operator", cause=NOT_FINITE, suspects=())
# What CUDA says of memory errors in the job's own log, the driver's of one that was contained, and of one that was not.
ECC = Evidence("s:1", "cuda.ecc", "process", "job_log", JOB, "uncorrectable ECC error", NOW - 9.0, "gpu2", 2,
               job="tj-000000000001")  # fmt: skip
XID_94 = Evidence("s:2", "xid.94", "kernel", "kernel", SENSOR, "NVRM: Xid 94", NOW - 9.0, "gpu2", attrs={"number": 94})
XID_48 = replace(XID_94, id="s:3", code="xid.48", raw="NVRM: Xid 48, DBE", attrs={"number": 48}, received_at=NOW - 8.0)


def run(loss: LossState | None = LOST, *evidence: Evidence, **changes: Any) -> SubjectFacts:
    of_run = {"evidence": evidence, "attempt": attempt(loss=loss, not_finite=(NotFinite(0, "loss", 80),))}
    return subject(**(of_run | changes))


def look(facts: SubjectFacts, policy: Any = KNOWING) -> Proposal:
    return propose(facts, NOW, policy)


def cause_of(facts: SubjectFacts, policy: Any = KNOWING) -> str | None:
    found = detect(facts, NOW, policy)
    return found.cause if isinstance(found, Finding) else None


def nothing_ends(proposal: Proposal) -> bool:
    return proposal.attempt_event is None and proposal.job_event is None


# --- when it is asked -----------------------------------------------------------------------------------------------


def test_a_loss_that_stays_no_number_asks_and_the_run_goes_on() -> None:
    proposal = look(run())
    verdict = proposal.verdict
    assert verdict is not None and nothing_ends(proposal)
    assert (verdict.cause, verdict.budget, verdict.hold, verdict.exclude) == (NOT_FINITE, "user", (), ())
    assert (verdict.suspects, proposal.charge) == ((), "none")
    assert proposal.ask is not None and "goes on" in proposal.ask
    assert [plan.kind for plan in proposal.plans] == [actions.NOTIFY]
    assert [(c.code, c.stance, c.layer) for c in verdict.clues] == [("loss.not_finite", "accuses", "process")]
    assert "since step 80" in verdict.reason and "21 times" in verdict.reason


@pytest.mark.parametrize(
    "loss",
    [
        None,
        LossState(),
        fold(LossState(), [(step, NAN) for step in range(1, 20)]),
        fold(LOST, [(101, 2.0)]),
        fold(LossState(), [(step, 2.0 if step % 2 else NAN) for step in range(1, 400)]),
        LossState(last_step=99, last_finite_step=99, spikes=(Spike(50, 9.0, 2.0, 60),)),
        LossState(last_step=99, last_finite_step=99, spikes=(Spike(50, 9.0, 2.0),)),
    ],
    ids=["not told", "none yet", "one too few", "a number again", "every second", "spike healed", "spike open"],
)
def test_what_is_no_lasting_row_asks_nothing(loss: LossState | None) -> None:
    assert look(run(loss)).empty


@pytest.mark.parametrize(
    "changes",
    [
        {"slurm": slurm_job(base="SUSPENDED")},
        {"slurm": slurm_job(flags=frozenset({"COMPLETING"}))},
        {"slurm": slurm_job(restarts=1)},
        {"slurm": None},
        {"attempt": attempt(loss=LOST, state="ended")},
        {"attempt": attempt(loss=LOST, finished=True)},
        {"attempt": None},
    ],
    ids=["suspended", "completing", "requeued", "unseen", "ended", "finished", "no attempt"],
)
def test_a_run_that_does_not_train_is_not_asked_about(changes: dict[str, Any]) -> None:
    assert cause_of(run(**changes)) is None


def test_how_many_in_a_row_is_policy_and_0_asks_never() -> None:
    assert cause_of(run(), replace(KNOWING, loss=Loss(not_finite_steps=22))) is None
    assert cause_of(run(), replace(KNOWING, loss=Loss(not_finite_steps=21))) == NOT_FINITE
    assert cause_of(run(), replace(KNOWING, loss=Loss(not_finite_steps=0))) is None


def test_what_a_person_has_answered_is_not_asked_again() -> None:
    row = "progress:not_finite:g1:80"
    answered = PastFault(1, NOT_FINITE, "resolved", detected_at=NOW - 60, until=NOW - 9, rests_on=(row,))
    assert look(run(last_fault=answered)).empty
    back_and_gone = fold(LOST, [(101, 2.0)] + [(step, NAN) for step in range(102, 130)])
    long_ago = replace(answered, until=NOW - AGAIN_S)
    assert cause_of(run(back_and_gone, last_fault=long_ago)) == NOT_FINITE, "numbers came back between"
    assert cause_of(run(last_fault=long_ago)) is None, "the same row"
    assert cause_of(run(last_fault=answered, attempt=attempt(loss=LOST, generation=2))) == NOT_FINITE


def test_a_loss_that_comes_and_goes_does_not_ask_at_each_turn() -> None:
    """21 values that are none, a number, 21 that are none, ...: each number closes what was asked."""
    loss, answered, asked = LossState(), None, 0
    for turn in range(40):
        start = 100 * turn
        loss = fold(loss, [(start, 2.0), *((start + n, NAN) for n in range(1, 22))])
        if cause_of(run(loss, last_fault=answered)) == NOT_FINITE:
            asked += 1
            answered = PastFault(
                asked, NOT_FINITE, "resolved", until=NOW, rests_on=(f"progress:not_finite:g1:{start + 1}",)
            )
    assert asked == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([2.0, 2.1, 9.0, NAN, float("inf")]), max_size=60), st.integers(1, 30))
def test_it_asks_exactly_when_the_newest_values_are_none(values: list[float], enough: int) -> None:
    state = fold(LossState(), enumerate(values, start=1))
    tail = 0
    for value in reversed(values):
        if value == value and value != float("inf"):
            break
        tail += 1
    proposal = look(run(state), replace(KNOWING, loss=Loss(not_finite_steps=enough)))
    assert (proposal.verdict is not None) == (tail >= enough)
    assert nothing_ends(proposal) and all(plan.kind == actions.NOTIFY for plan in proposal.plans)


# --- a second sign --------------------------------------------------------------------------------------------------


def test_no_number_alone_is_unknown_for_a_bundle_and_for_a_live_run() -> None:
    found = assess(case_of(run(), NOW, KNOWING), KNOWING.knowledge)
    assert (found.verdict, found.suspect_nodes, found.drain, found.exclude) == ("unknown", (), (), ())


@pytest.mark.parametrize("sign", [ECC, XID_94, XID_48], ids=lambda sign: sign.code)
def test_with_an_error_of_a_gpu_it_is_that_node(sign: Evidence) -> None:
    facts = run(LOST, sign)
    found = assess(case_of(facts, NOW, KNOWING), KNOWING.knowledge)
    assert (found.verdict, found.suspect_nodes, found.exclude) == ("gpu_hardware", ("gpu2",), ("gpu2",))
    proposal = look(facts)
    assert proposal.verdict is not None
    assert (proposal.verdict.suspects, proposal.verdict.exclude) == (("gpu2",), ("gpu2",))
    assert (proposal.verdict.budget, proposal.attempt_event, proposal.ask) == ("infrastructure", "end", None)
    assert actions.REQUEUE in [plan.kind for plan in proposal.plans]
    assert {"loss.not_finite", sign.code} >= {c.code for c in proposal.verdict.clues if c.stance == "accuses"}


@pytest.mark.parametrize("sign", [ECC, XID_94], ids=lambda sign: sign.code)
def test_the_same_sign_alone_ends_no_run_that_trains(sign: Evidence) -> None:
    assert look(run(LossState(last_step=100, last_finite_step=100), sign)).empty


def test_a_traceback_beside_it_does_not_end_the_run() -> None:
    """It goes on training: whatever was caught and logged did not stop it."""
    line = replace(ECC, code="python.exception", raw="ValueError: x", attrs={"type": "ValueError"})
    proposal = look(run(LOST, line))
    assert proposal.verdict is not None and proposal.verdict.cause == NOT_FINITE and nothing_ends(proposal)


@pytest.mark.parametrize(
    "changes",
    [{"spent": Spent(infrastructure=99)}, {"enrolled": False}, {"slurm": slurm_job(required_nodes=("gpu2",))}],
    ids=["budget", "not enrolled", "required node"],
)
def test_what_can_only_be_asked_about_does_not_end_the_run(changes: dict[str, Any]) -> None:
    proposal = look(run(LOST, ECC, **changes))
    assert proposal.verdict is not None and proposal.ask and nothing_ends(proposal)
    assert (proposal.verdict.cause, proposal.verdict.suspects) == (NOT_FINITE, ("gpu2",))
    assert look(run(LOST, ECC, incident=ASKING, **changes)).verdict is None, "asked once"


# --- while it is asked about ----------------------------------------------------------------------------------------


def test_it_is_asked_once() -> None:
    assert look(run(incident=ASKING)).empty


def test_numbers_that_return_close_it() -> None:
    proposal = look(run(fold(LOST, [(101, 2.0)]), incident=ASKING))
    assert proposal.incident_events == ("resolve",) and nothing_ends(proposal)


def test_an_unknown_loss_closes_nothing() -> None:
    assert look(run(None, incident=ASKING)).empty


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (replace(gpu2_lost(), attempt=replace(gpu2_lost().attempt, loss=LOST)), NODE_LOST),  # type: ignore[type-var]
        (run(attempt=attempt(loss=LOST, exits=(rank_exit(),))), PROCESS_DIED),
        (run(LOST, ECC), GPU_HARDWARE),
    ],
    ids=["node lost", "process died", "second sign"],
)
def test_whatever_else_hits_the_run_takes_its_place(facts: SubjectFacts, cause: str) -> None:
    alone, beside = look(facts), look(replace(facts, incident=ASKING))
    assert alone.verdict is not None and alone.verdict.cause == cause
    assert beside == replace(alone, incident_events=("abandon",))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"slurm": slurm_job(base="CANCELLED")}, "cancelled"),
        ({"slurm": slurm_job(base="COMPLETED")}, "finished"),
        ({"slurm": slurm_job(base="PENDING", restarts=1)}, "requeued"),
    ],
    ids=["cancelled", "completed", "requeued by somebody"],
)
def test_an_end_of_another_kind_closes_it_and_is_followed_as_ever(changes: dict[str, Any], outcome: str) -> None:
    alone, beside = look(run(**changes)), look(run(incident=ASKING, **changes))
    assert (alone.attempt_outcome, beside.attempt_outcome) == (outcome, outcome)
    assert (alone.job_event, beside.job_event) == (beside.job_event, alone.job_event)
    assert beside.incident_events == ("resolve",)


def test_a_newer_attempt_with_the_same_loss_is_a_new_question() -> None:
    newer = attempt(loss=LOST, generation=2, restart_count=1)
    facts = run(attempt=newer, slurm=slurm_job(restarts=1), incident=ASKING)
    proposal = look(facts)
    assert proposal.verdict is not None and proposal.verdict.cause == NOT_FINITE
    assert proposal.incident_events == ("abandon",)
    healthy = replace(facts, attempt=replace(newer, loss=LossState()))
    assert look(healthy).incident_events == ("resolve",)


states = st.sampled_from(INCIDENT.live)
losses = st.sampled_from([None, LossState(), LOST, fold(LOST, [(101, 2.0)])])


@settings(max_examples=200, deadline=None)
@given(states, losses, st.sampled_from([(), (ECC,), (XID_48,)]), st.sampled_from(["RUNNING", "PENDING", "COMPLETED"]))
def test_its_events_are_those_of_the_table(
    state: str, loss: LossState | None, evidence: tuple[Evidence, ...], base: str
) -> None:
    facts = run(loss, *evidence, incident=incident(state=state, cause=NOT_FINITE), slurm=slurm_job(base=base))
    proposal = look(facts)
    assert proposal.reason
    for event in proposal.incident_events:
        assert INCIDENT.allows(state, event)
    if proposal.verdict is not None and proposal.verdict.cause in GOES_ON:
        assert nothing_ends(proposal)


def test_what_it_says_is_the_same_however_often_it_is_said() -> None:
    facts = run()
    finding = detect(facts, NOW, KNOWING)
    assert isinstance(finding, Finding)
    once = diagnose(facts, finding, NOW, KNOWING)
    twice = diagnose(replace(facts, evidence=(*facts.evidence, *facts.evidence)), finding, NOW, KNOWING)
    assert once == twice and len({c.ref for c in once.clues}) == len(once.clues)
