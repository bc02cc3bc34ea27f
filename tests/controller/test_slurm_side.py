"""Slurm's word as evidence, and whose GPUs a job holds, out of rows."""

from typing import Any

import pytest

from controller.clock import aware
from controller.decision.evidence import SLURM, Evidence
from controller.decision.facts import NodeFact, SlurmJobFact
from controller.decision.policy import Policy
from controller.models import AgentReport, NodeSensor
from controller.snapshot import slurm_side
from controller.snapshot.facts import read_facts
from tests.builders import T0, attempt, cluster, training_job

pytestmark = pytest.mark.db
POLICY = Policy(mode="act")
A, B = "GPU-0aaaaaaa", "GPU-1bbbbbbb"


# --- nodes as Slurm has them ----------------------------------------------------------------------------------------


def of_node(base: str = "IDLE", flags: tuple[str, ...] = (), reason: str = "", **fields: Any) -> list[Evidence]:
    node = NodeFact("gpu2", base, frozenset(flags), reason, **fields)
    return slurm_side.of_nodes({"gpu2": node, "gpu9": NodeFact("gpu9", "DOWN")}, ["gpu2", "gone"], T0)


@pytest.mark.parametrize("flags", [("DRAIN",), ("FAIL",), ("NOT_RESPONDING",), ("DRAIN", "NOT_RESPONDING")])
def test_a_node_that_is_out_is_said_in_slurms_words(flags: tuple[str, ...]) -> None:
    (found,) = of_node("MIXED", flags, "fan broken", reason_user="root", reason_at=T0 - 5)
    state = "+".join(["MIXED", *sorted(flags)])
    assert (found.code, found.origin, found.node, found.at) == ("slurm.node_state", SLURM, "gpu2", T0 - 5)
    assert found.attrs == {"state": state, "reason": "fan broken", "reason_user": "root"}
    assert found.raw == f"gpu2 {state} fan broken"


def test_a_down_node_without_a_reason_is_dated_by_the_view() -> None:
    (found,) = of_node("DOWN")
    assert (found.raw, found.at) == ("gpu2 DOWN", T0)


@pytest.mark.parametrize("flags", [(), ("PLANNED",), ("COMPLETING",), ("POWERING_UP",)])
def test_a_node_that_is_well_says_nothing(flags: tuple[str, ...]) -> None:
    assert of_node("ALLOCATED", flags, "an old reason") == []


def test_what_relume_wrote_itself_is_no_evidence() -> None:
    assert of_node("IDLE", ("DRAIN",), "relume:2ed991f620dc incident 2: GPU hardware failed") == []


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Kill task failed", "slurm.step_unkillable"),
        ("kill task failed [root@2026-11-30T05:00:00]", "slurm.step_unkillable"),
        ("Prolog error", "slurm.launch_failed"),
        ("batch job complete failure", "slurm.launch_failed"),
        ("SlurmdSpoolDir is full", "slurm.launch_failed"),
    ],
)
def test_what_slurmctld_drains_for_by_itself_has_its_own_code(reason: str, code: str) -> None:
    state, found = of_node("IDLE", ("DRAIN",), reason)
    assert (state.code, found.code, found.node) == ("slurm.node_state", code, "gpu2")


def test_a_persons_words_are_no_launch_failure() -> None:
    assert [e.code for e in of_node("IDLE", ("DRAIN",), "see ticket 12: prolog error")] == ["slurm.node_state"]


# --- the job --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["PENDING", "RUNNING", "COMPLETED"])
def test_a_job_that_goes_its_way_says_nothing(base: str) -> None:
    assert slurm_side.of_job(SlurmJobFact("7", base), T0) == []


@pytest.mark.parametrize("base", ["FAILED", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED"])
def test_how_a_job_ended_is_said(base: str) -> None:
    job = SlurmJobFact("7", base, reason="None", restarts=2, exit_code=1, end_at=T0 - 9)
    (found,) = slurm_side.of_job(job, T0)
    assert (found.code, found.at, found.node, found.origin) == ("slurm.job_state", T0 - 9, None, SLURM)
    assert found.attrs == {"state": base, "reason": "None", "restarts": 2, "exit_code": 1}
    assert found.raw == f"job 7 {base} None Restarts=2"


def test_a_held_job_is_said_too_and_an_unknown_one_is_not() -> None:
    (held,) = slurm_side.of_job(SlurmJobFact("7", "PENDING", reason="JobHeldAdmin", held_by="admin"), T0)
    assert held.attrs == {"state": "PENDING", "reason": "JobHeldAdmin", "restarts": 0} and held.at == T0
    assert slurm_side.of_job(None, T0) == []


def test_the_same_word_has_the_same_id_at_every_look() -> None:
    job = SlurmJobFact("7", "FAILED", end_at=T0)
    assert slurm_side.of_job(job, T0 + 1) == slurm_side.of_job(job, T0 + 99)
    assert of_node("DOWN", reason="fan", reason_at=T0 - 5) == of_node("DOWN", reason="fan", reason_at=T0 - 5)


# --- whose GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "seen", "there", "held"),
    [
        ((A,), (A, B), (A, B), {A}),
        ((), (A,), (A, B), {A}),  # a container hides the other one
        ((), (A, B), (A, B), None),  # it sees all of them: all may be its own
        ((), (A,), (), None),  # no sensor says what the node has
        ((), (), (A, B), None),
        ((), (A, "GPU-9elsewhere"), (A, B), None),
    ],
)
def test_a_container_that_hides_gpus_tells_which_are_the_jobs(
    db: None, told: tuple[str, ...], seen: tuple[str, ...], there: tuple[str, ...], held: set[str] | None
) -> None:
    ours = attempt(training_job(state="training"))
    gpus = {f"0000:{number}b:00": uuid for number, uuid in enumerate(there, 1)}
    NodeSensor.objects.create(cluster=cluster(), node="gpu1", created_at=aware(T0), gpus=gpus)
    AgentReport.objects.create(
        attempt=ours, node="gpu1", received_at=aware(T0), sent_at=aware(T0), state="running",
        gpus=list(told), identity={"gpus": list(seen)},
    )  # fmt: skip
    (facts,), _ = read_facts(cluster(), T0, POLICY)
    assert facts.gpus.get("gpu1") == held
