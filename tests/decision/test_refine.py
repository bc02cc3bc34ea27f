"""What a detector found, with what the evidence says of it: whose fault, whom to keep away from, which budget pays."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision.actions import HOLD_NODE, NOTIFY
from controller.decision.actions import REQUEUE as REQUEUE_ACTION
from controller.decision.attempt_facts import LearnedPace, RankProgress
from controller.decision.diagnosis import ASK, REQUEUE, Verdict, diagnose
from controller.decision.evidence import JOB, SENSOR, Evidence
from controller.decision.facts import SubjectFacts
from controller.decision.findings import FABRIC, GPU_HARDWARE, NODE_LOST, PROCESS_DIED, USER_ERROR, Finding
from controller.decision.losses import LossState, Spike
from controller.decision.policy import Stall
from controller.decision.propose import propose
from controller.decision.silent_nodes import node_lost
from controller.decision.stalls import stalled
from tests.decision.given import knowledge
from tests.decision.quiet import NOW, POLICY, attempt, gpu2_lost, rank_exit, slurm_job, subject

pytestmark = pytest.mark.pure
KNOWING = replace(POLICY, knowledge=knowledge())
TRUSTING = replace(KNOWING, trust_job_evidence=True)
RANKS = {0: "gpu1", 1: "gpu1", 2: "gpu2", 3: "gpu2"}


def said(code: str, origin: str = JOB, node: str | None = "gpu2", rank: int | None = None, **attrs: Any) -> Evidence:
    layer = "kernel" if origin == SENSOR else "process"
    run = "tj-000000000001" if origin == JOB else ""
    return Evidence(f"{code}/{rank}", code, layer, "test", origin, code, NOW - 6.0, node, rank, attrs, job=run)


def hit(*evidence: Evidence, **changes: Any) -> SubjectFacts:
    return subject(evidence=evidence, rank_nodes=RANKS, **changes)


def judged(facts: SubjectFacts, cause: str = USER_ERROR, policy: Any = KNOWING) -> Verdict:
    return diagnose(facts, Finding(cause, "rank 2 ended with exit code 1", ranks=(2,), fault_at=NOW - 5.0), NOW, policy)


def test_an_error_of_the_program_that_was_an_ecc_error_is_hardware() -> None:
    found = judged(hit(said("cuda.ecc", node=None, rank=2), said("xid.48", SENSOR, number=48, pci="0000:9b:00")))
    assert (found.cause, found.suspects, found.hold, found.exclude) == (GPU_HARDWARE, ("gpu2",), ("gpu2",), ("gpu2",))
    assert (found.remedy, found.budget) == (REQUEUE, "infrastructure")
    assert found.assessment["xid"] == 48
    assert {clue.code for clue in found.clues} == {"cuda.ecc", "xid.48"}
    assert found.fault_at == NOW - 6.0


def test_the_jobs_own_word_keeps_the_job_away_and_holds_nothing() -> None:
    facts = hit(said("cuda.ecc", node=None, rank=2))
    found = judged(facts)
    assert (found.hold, found.exclude, found.assessment["withheld"]) == ((), ("gpu2",), ["gpu2"])
    assert judged(facts, policy=TRUSTING).hold == ("gpu2",)


def test_what_the_user_must_repair_asks_and_blames_no_node() -> None:
    found = judged(hit(said("cuda.out_of_memory", rank=2)), PROCESS_DIED)
    assert (found.remedy, found.budget, found.hold, found.exclude) == (ASK, "user", (), ())
    assert found.stop


def test_a_guess_changes_nothing_that_is_done() -> None:
    plain = judged(subject(), PROCESS_DIED)
    found = judged(hit(said("process.exit", rank=2, signal=9, exit_code=-9)), PROCESS_DIED)
    assert (found.cause, found.remedy, found.budget) == (plain.cause, plain.remedy, plain.budget)
    assert found.assessment["confidence"] == "low"
    assert found.clues


def test_a_lost_node_stays_lost_whatever_the_survivors_say() -> None:
    facts = replace(gpu2_lost(), evidence=(said("python.exception", node="gpu1", rank=0, type="ValueError"),))
    finding = node_lost(facts, NOW, KNOWING)
    assert isinstance(finding, Finding)
    found = diagnose(facts, finding, NOW, KNOWING)
    assert (found.cause, found.hold, found.exclude, found.remedy) == (NODE_LOST, ("gpu2",), ("gpu2",), REQUEUE)


def test_a_required_node_is_not_excluded_but_asked_about() -> None:
    facts = hit(said("xid.79", SENSOR, number=79), slurm=slurm_job(required_nodes=("gpu2",)))
    found = judged(facts, PROCESS_DIED)
    assert (found.exclude, found.remedy) == ((), ASK)
    assert "gpu2" in found.stop


def test_without_meanings_or_evidence_the_rule_stands() -> None:
    assert judged(subject()) == judged(subject(), policy=POLICY)
    assert judged(hit(said("xid.79", SENSOR)), policy=POLICY).cause == USER_ERROR


def test_three_reporters_reach_the_plan() -> None:
    nodes = ("gpu1", "gpu2", "gpu3", "gpu4")
    voices = tuple(said("nccl.ib_completion", node=n, peer="10.0.0.2", status=12) for n in ("gpu1", "gpu3", "gpu4"))
    facts = hit(
        *(replace(voice, id=str(i), raw=str(voice.node)) for i, voice in enumerate(voices)),
        addresses={"10.0.0.2": "gpu2"},
        attempt=attempt(nodes=nodes, exits=(rank_exit(signal=None, exit_code=1),)),
        slurm=slurm_job(base="FAILED", nodes=nodes),
    )
    proposal = propose(facts, NOW, TRUSTING)
    assert proposal.verdict is not None
    assert (proposal.verdict.cause, proposal.verdict.exclude) == (FABRIC, ("gpu2",))
    assert {(plan.kind, plan.target) for plan in proposal.plans} >= {(HOLD_NODE, "gpu2"), (REQUEUE_ACTION, "7")}
    held = propose(facts, NOW, KNOWING)
    assert {plan.kind for plan in held.plans} == {REQUEUE_ACTION, NOTIFY}


# --- what the run itself shows --------------------------------------------------------------------------------------

SLOW = {"step": LearnedPace(500, 0.6, 40.0, recent_s=37.0)}


def test_the_runs_own_progress_is_shown_though_nothing_else_was_said() -> None:
    facts = subject(attempt=attempt(learned=SLOW, loss=LossState(spikes=(Spike(90, 9.0, 2.0, 95),))))
    found = judged(facts, PROCESS_DIED)
    assert {(clue.code, clue.stance, clue.layer) for clue in found.clues} == {
        ("progress.slow", "context", "progress"),
        ("loss.spike", "context", "process"),
    }
    plain = judged(subject(), PROCESS_DIED)
    assert (found.cause, found.remedy, found.budget) == (plain.cause, plain.remedy, plain.budget)
    assert found.assessment == {}, "a healed spike is no word on why a process died"


def test_a_pace_that_collapsed_before_a_connection_closed_is_part_of_the_story() -> None:
    """Case A51: nobody knows why that process had ended; sixty times slower is shown, and blames nobody."""
    raw = "Read error [10.1.0.42]:25266: Connection reset by peer"
    lost = replace(said("gloo.peer_lost", node="gpu1", rank=0, peer="10.1.0.42", kind="closed"), raw=raw)
    found = judged(hit(lost, addresses={"10.1.0.42": "gpu2"}, attempt=attempt(learned=SLOW)), PROCESS_DIED)
    assert (found.assessment["verdict"], found.assessment["confidence"]) == ("unknown", "low")
    assert "62 times" in found.assessment["why"] and found.hold == found.exclude == ()
    assert {c.code for c in found.clues if c.stance == "accuses"} == {"gloo.peer_lost", "progress.slow"}


def test_a_stall_is_not_told_twice() -> None:
    """The detector's own lines and the evidence of the same stall have the same ids."""
    at = NOW - 4000.0
    ranks = tuple(
        RankProgress(n, f"gpu{1 + n // 2}", "running", NOW - 0.5, "training", 99 if n == 2 else 100, at, NOW - 0.5)
        for n in range(4)
    )
    facts = subject(attempt=attempt(ranks=ranks), rank_nodes=RANKS)
    policy = replace(KNOWING, stall=Stall(step_s=60.0))
    finding = stalled(facts, NOW, policy)
    assert isinstance(finding, Finding)
    found = diagnose(facts, finding, NOW, policy)
    assert (found.cause, found.remedy, found.budget) == ("hang", REQUEUE, "infrastructure")
    assert [c.ref for c in found.clues] == [c.ref for c in finding.clues]
    assert found.hold == found.exclude == ()
