"""What earlier incidents said, of the nodes and of the job itself, out of rows: bounded, and not for ever."""

from typing import Any

import pytest

from controller.clock import aware
from controller.decision.evidence import CONTROLLER, Evidence
from controller.decision.policy import Limits, Policy
from controller.models import Attempt, Incident, Node, NodeEvent, NodeHold, Sign, TrainingJob
from controller.models import Evidence as ProofLine
from controller.snapshot import remembered, slurm_side
from controller.snapshot.facts import read_facts
from tests.builders import RUN_ID, T0, attempt, cluster, training_job

pytestmark = pytest.mark.db
HOUR = 3600.0
POLICY = Policy(mode="act")


def remember(
    run_id: str = "tj-another", *, age_s: float = HOUR, suspects: tuple[str, ...] = ("gpu2",), **columns: Any
) -> Incident:
    """An incident of that job, `age_s` before T0, that accused `suspects` of a hardware fault."""
    known = TrainingJob.objects.filter(run_id=run_id).first()
    job = known if known is not None else training_job(run_id, slurm_job_id=f"9{TrainingJob.objects.count()}")
    at = aware(T0 - age_s)
    quiet: dict[str, Any] = {"cause": "gpu_hardware", "summary": "GPU hardware failed: gpu2", "reason": "because"}
    quiet |= {"confidence": 0.9, "budget": "infrastructure", "suspects": list(suspects), "state": "resolved"}
    quiet |= {"fault_at": at, "detected_at": at, "assessment": {"verdict": "gpu_hardware"}}
    return Incident.objects.create(cluster=job.cluster, training_job=job, **(quiet | columns))


def line(of: Incident, code: str = "cuda.ecc", node: str = "gpu2", **columns: Any) -> ProofLine:
    number = of.evidence.count() + 1
    quiet: dict[str, Any] = {"layer": "process", "source": "job_log", "subject": node, "raw": f"{code} line {number}"}
    quiet |= {"origin": "job", "observed_at": of.detected_at, "received_at": of.detected_at}
    return ProofLine.objects.create(incident=of, number=number, code=code, node=node, **(quiet | columns))


def sign_of(of: Incident, code: str, **attrs: Any) -> Sign:
    said_in = Attempt.objects.create(
        training_job=of.training_job, generation=50 + Sign.objects.count(), slurm_job_id="9", nodes=["gpu2"],
        created_at=of.detected_at,
    )  # fmt: skip
    return Sign.objects.create(
        cluster=of.cluster, attempt=said_in, node="gpu2", code=code, seq=1, origin="job", reporter="gpu2",
        layer="process", source="job_log", raw="the line", attrs=attrs, order=0,
        observed_at=of.detected_at, received_at=of.detected_at,
    )  # fmt: skip


@pytest.fixture
def job(db: None) -> TrainingJob:
    """Ours, live on gpu1 and gpu2 since T0 minus a minute."""
    made: TrainingJob = training_job(state="training")
    attempt(made, created_at=aware(T0 - 60))
    return made


def recalled(policy: Policy = POLICY) -> list[Evidence]:
    (facts,) = [f for f in read_facts(cluster(), T0, policy)[0] if f.run_id == RUN_ID]
    return [e for e in facts.evidence if e.code == "history.error"]


def test_the_lines_of_another_jobs_incident_are_remembered_with_their_codes(job: TrainingJob) -> None:
    old = remember()
    line(old)
    line(old, "cuda.ecc", raw="the same again")
    line(old, "nccl.ib_completion")
    found = recalled()
    assert [(e.attrs["of"], e.node, e.origin) for e in found] == [
        ("cuda.ecc", "gpu2", CONTROLLER),
        ("nccl.ib_completion", "gpu2", CONTROLLER),
    ]
    assert found[0].attrs["job"] == "tj-another" and "cuda.ecc line 1" in found[0].raw
    assert found[0].at == T0 - HOUR and len({e.id for e in found}) == 2


def test_the_details_of_a_sign_come_along_while_it_is_kept(job: TrainingJob) -> None:
    old = remember()
    kept = sign_of(old, "xid.31", pci="0000:9b:00", location="GPC 2", number=31)
    line(old, "xid.31", ref=f"sign:{kept.pk}")
    (found,) = recalled()
    assert {"pci": "0000:9b:00", "location": "GPC 2"}.items() <= found.attrs.items()
    kept.delete()
    (found,) = recalled()
    assert "pci" not in found.attrs and found.attrs["of"] == "xid.31"


def test_another_sign_that_has_the_number_now_is_not_it(job: TrainingJob) -> None:
    old = remember()
    other = sign_of(old, "xid.79", pci="0000:1b:00")
    line(old, "cuda.ecc", ref=f"sign:{other.pk}")
    (found,) = recalled()
    assert (found.attrs["of"], "pci" in found.attrs) == ("cuda.ecc", False)


@pytest.mark.parametrize(
    ("assessment", "of"), [({"verdict": "gpu_hardware", "xid": 48}, "xid.48"), ({}, "gpu_hardware")]
)
def test_without_lines_the_verdict_on_the_hardware_is_remembered(
    job: TrainingJob, assessment: dict[str, Any], of: str
) -> None:
    remember(assessment=assessment)
    assert [e.attrs["of"] for e in recalled()] == [of]


@pytest.mark.parametrize("cause", ["hang", "user_error", "node_lost", "many_nodes"])
def test_what_was_no_hardware_and_left_no_lines_is_not(job: TrainingJob, cause: str) -> None:
    remember(cause=cause, assessment={})
    assert recalled() == []


def test_lines_that_speak_of_no_machine_or_accuse_nobody_are_not(job: TrainingJob) -> None:
    old = remember(cause="user_error", assessment={"verdict": "user_code"})
    line(old, "python.exception")
    line(old, "cuda.ecc", stance="cascade")
    line(old, "xid.79", stance="clears")
    assert recalled() == []


def test_a_line_about_a_node_that_the_incident_did_not_accuse_is_no_strike(job: TrainingJob) -> None:
    """Where many failed at once nobody is blamed, whatever was said on each."""
    many = remember(suspects=(), cause="process_died", assessment={"verdict": "unknown"})
    line(many, "xid.79")
    assert recalled() == []


@pytest.mark.parametrize("key", ["exclude", "withheld", "node_actions"])
def test_a_node_that_was_only_to_be_watched_has_a_strike(job: TrainingJob, key: str) -> None:
    told: Any = {"gpu2": "one strike: xid.109"} if key == "node_actions" else ["gpu2"]
    line(remember(suspects=(), cause="process_died", assessment={"verdict": "unknown", key: told}), "xid.109")
    assert [e.attrs["of"] for e in recalled()] == ["xid.109"]


def test_nodes_that_are_not_the_jobs_are_left_alone(job: TrainingJob) -> None:
    line(remember(suspects=("gpu7",)), node="gpu7")
    assert recalled() == []


def test_another_clusters_memory_is_its_own(job: TrainingJob) -> None:
    far = cluster("far")
    foreign = training_job("tj-far", cluster=far, slurm_job_id="3")
    line(remember("tj-far"))
    assert foreign.cluster == far and recalled() == []


def test_the_window_is_the_policys(job: TrainingJob) -> None:
    line(remember(age_s=2 * HOUR))
    assert recalled()
    assert recalled(Policy(limits=Limits(strike_memory_s=HOUR))) == []


def test_what_this_attempt_said_itself_is_not_history_and_what_another_job_said_meanwhile_is(job: TrainingJob) -> None:
    line(remember(RUN_ID, age_s=30))
    assert recalled() == []
    line(remember(age_s=20))
    assert [e.attrs["job"] for e in recalled()] == ["tj-another"]
    line(remember(RUN_ID, age_s=HOUR))
    assert {e.attrs["job"] for e in recalled()} == {"tj-another", RUN_ID}


def test_the_live_incident_is_not_its_own_history(job: TrainingJob) -> None:
    line(remember(RUN_ID, age_s=90, state="acting"))
    assert recalled() == []


@pytest.mark.parametrize(("age_s", "left"), [(HOUR / 2, 0), (2 * HOUR, 1)])
@pytest.mark.parametrize("how", ["returned", "swapped"])
def test_memory_ends_where_the_node_came_back_or_is_other_hardware(
    job: TrainingJob, how: str, age_s: float, left: int
) -> None:
    line(remember())
    node = Node.objects.create(name="gpu2", cluster=cluster(), seen_at=aware(T0))
    at = aware(T0 - age_s)
    if how == "returned":
        NodeHold.objects.create(
            node=node, state="released", token="t", reason="x", created_at=at, state_at=at, ended_at=at
        )
    else:
        NodeEvent.objects.create(node=node, kind="swapped", text="another machine", at=at)
    assert len(recalled()) == left


def test_a_hold_that_stands_ends_nothing(job: TrainingJob) -> None:
    line(remember())
    node = Node.objects.create(name="gpu2", cluster=cluster(), seen_at=aware(T0))
    NodeHold.objects.create(node=node, token="t", reason="x", created_at=aware(T0), state_at=aware(T0))
    assert len(recalled()) == 1


def test_it_is_bounded_and_the_newest_is_kept(job: TrainingJob) -> None:
    for number in range(slurm_side.MOST_REMEMBERED + 5):
        line(remember(age_s=HOUR + number))
    found = recalled()
    assert len(found) == slurm_side.MOST_REMEMBERED and found[0].at == T0 - HOUR
    crowded = remember(age_s=100)
    for code in ("xid.1", "xid.2", "xid.3", "xid.4", "xid.5"):
        line(crowded, code)
    assert len([e for e in recalled() if e.at == T0 - 100]) == slurm_side.MOST_CODES


# --- what ended earlier attempts ------------------------------------------------------------------------------------


def test_an_earlier_attempt_has_its_verdict_and_its_lines(job: TrainingJob) -> None:
    first = job.attempts.get()
    second = attempt(job, 2, created_at=aware(T0 - 30))
    old = remember(RUN_ID, age_s=50, attempt=first)
    line(old)
    line(old, "nccl.remote_error", stance="cascade")
    line(remember(RUN_ID, age_s=20, attempt=second), "xid.79")
    (facts,), _ = read_facts(cluster(), T0, POLICY)
    (before,) = facts.attempts_before
    assert (before.generation, before.verdict) == (1, "gpu_hardware")
    assert [(e.code, e.origin, e.job) for e in before.evidence] == [("cuda.ecc", "job", RUN_ID)]


def test_earlier_attempts_are_bounded_however_long_ago_they_were(job: TrainingJob) -> None:
    made = [job.attempts.get(), *(attempt(job, n, created_at=aware(T0)) for n in range(2, 9))]
    for old in made[:-1]:
        told = remember(RUN_ID, age_s=900 * HOUR, attempt=old)
        for _ in range(remembered.MOST_LINES + 3):
            line(told)
    (facts,), _ = read_facts(cluster(), T0, POLICY)
    lines = [len(each.evidence) for each in facts.attempts_before]
    assert lines == [0, 0] + [remembered.MOST_LINES] * remembered.MOST_ATTEMPTS


def test_an_attempt_that_no_incident_ended_says_nothing(job: TrainingJob) -> None:
    attempt(job, 2)
    (facts,), _ = read_facts(cluster(), T0, POLICY)
    assert [(e.verdict, e.evidence) for e in facts.attempts_before] == [("", ())]


# --- whose voice it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "own"),
    [({"owner": "ada"}, True), ({"owner": "eve"}, False), ({"owner": "eve", "owner_confirmed": False}, True)],
)
def test_another_job_of_the_same_owner_is_no_second_voice(job: TrainingJob, columns: dict[str, Any], own: bool) -> None:
    """Nor is one whose owner Slurm has not confirmed."""
    training_job("tj-another", slurm_job_id="9", **{"owner_confirmed": True, **columns})
    line(remember())
    (found,) = recalled()
    assert (found.attrs["owner"], found.attrs.get("own", False)) == (columns["owner"], own)


@pytest.mark.parametrize(("origin", "remembered_of"), [("slurm", ["slurm.launch_failed"]), ("job", [])])
def test_what_a_job_says_that_slurm_said_is_no_memory_of_slurms(
    job: TrainingJob, origin: str, remembered_of: list[str]
) -> None:
    said = remember(suspects=(), cause="process_died", assessment={"verdict": "slurm_infra", "exclude": ["gpu2"]})
    line(said, "slurm.launch_failed", origin=origin)
    assert [e.attrs["of"] for e in recalled()] == remembered_of
