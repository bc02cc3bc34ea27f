"""A live job's own signs, end to end: whose fault it is called, who is kept away, who is held, and what it costs."""

from typing import Any

import pytest
from django.db import transaction

from controller.clock import aware
from controller.models import Attempt, Evidence, Incident, Sign, TrainingJob
from tests.scenarios.conftest import ECC, XID_48, die, ecc_by_the_jobs_word, excluded, held
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]


# --- the job's own word on hardware -------------------------------------------------------------------------------


def test_a_hard_sign_by_the_jobs_word_alone_excludes_the_node_and_does_not_hold_it(world: World) -> None:
    world.start()
    ecc_by_the_jobs_word(world)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.suspects) == ("gpu_hardware", "infrastructure", ["gpu2"])
    assert (incident.assessment["withheld"], incident.assessment["drain"]) == (["gpu2"], [])
    assert (held(), excluded(), world.slurm_job().excluded) == ([], ["gpu2"], ["gpu2"])
    assert world.effects("drain", "down") == [] and "gpu2" not in world.slurm_job().nodes
    assert (world.slurm_job().base, world.slurm_job().restarts) == ("RUNNING", 1)
    assert Attempt.objects.get(generation=1).outcome == "node_failed"


@pytest.mark.parametrize("place", ["nodes", "reporter"])
def test_a_job_accuses_no_node_that_slurm_does_not_show_it_on(world: World, place: str) -> None:
    """Its agents may say that they are anywhere; gpu4 is other people's."""
    world.start()
    assert "gpu4" not in world.slurm_job().nodes
    Attempt.objects.update(nodes=["gpu1", "gpu2", "gpu4"] if place == "nodes" else ["gpu1", "gpu2"])
    world.job_sign("gpu4", "cuda.ecc", 2, raw=ECC, attrs={"text": ECC})
    die(world, (2, "gpu2"))
    world.run(14)
    incident = world.incident()
    assert "gpu4" not in incident.suspects and incident.assessment.get("withheld", []) == []
    assert held() == [] and "gpu4" not in excluded()


def test_the_same_by_a_kernel_line_in_the_jobs_log(world: World) -> None:
    world.start()
    world.job_sign("gpu2", "xid.79", layer="kernel", raw="NVRM: Xid (PCI:0000:9b:00): 79", attrs={"number": 79})
    die(world, (2, "gpu2"))
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.assessment["withheld"], incident.assessment["xid"]) == (
        "gpu_hardware",
        ["gpu2"],
        79,
    )
    assert (held(), excluded()) == ([], ["gpu2"]) and world.slurm_job().restarts == 1


def test_where_the_policy_trusts_the_job_the_node_is_held(world: World) -> None:
    world.set_policy(trust_job_evidence=True)
    world.start()
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert (world.incident().assessment["withheld"], world.incident().assessment["drain"]) == ([], ["gpu2"])
    assert (held(), excluded(), world.effects("drain")) == (["gpu2"], ["gpu2"], ["drain gpu2"])
    assert world.slurm_job().restarts == 1


@pytest.mark.parametrize("after_s", [0, 1, 4, 30])
def test_where_the_sensor_agrees_the_node_is_held_whenever_its_word_comes(world: World, after_s: int) -> None:
    world.start()
    fault = world.now
    ecc_by_the_jobs_word(world)
    world.run(after_s)
    world.sense("gpu2", {**XID_48, "at": fault})
    world.run(20)
    incident = world.incident()
    assert (held(), excluded(), incident.budget) == (["gpu2"], ["gpu2"], "infrastructure")
    assert world.effects("drain") == ["drain gpu2"] and world.slurm_job().restarts == 1
    assert incident.suspects == ["gpu2"] and incident.evidence.filter(code="xid.48", origin="sensor").count() == 1


def test_a_sensor_that_reads_and_sees_nothing_is_no_agreement(world: World) -> None:
    world.start()
    world.sense("gpu2")
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert (held(), excluded()) == ([], ["gpu2"])


def accused_before(world: World, job: TrainingJob) -> None:
    """An hour ago that job's own word accused gpu2, which was not held for it."""
    at = aware(world.now - 3600.0)
    Incident.objects.create(
        cluster=job.cluster,
        training_job=job,
        cause="gpu_hardware",
        summary="GPU hardware failed: gpu2",
        reason="by the job's own word",
        confidence=0.9,
        budget="infrastructure",
        suspects=["gpu2"],
        state="resolved",
        fault_at=at,
        detected_at=at,
        ended_at=at,
        assessment={"verdict": "gpu_hardware", "xid": 48, "withheld": ["gpu2"]},
    )


def test_what_the_same_job_said_before_is_no_second_voice(world: World) -> None:
    job = world.start()
    accused_before(world, job)
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert (held(), excluded()) == ([], ["gpu2"])


def test_where_an_independent_job_said_it_before_the_node_is_held(world: World) -> None:
    job, at = world.start(), aware(world.now)
    other = TrainingJob.objects.create(
        run_id="another",
        name="other",
        owner="eve",
        owner_confirmed=True,
        cluster=job.cluster,
        state="stopped",
        state_at=at,
        created_at=at,
    )
    accused_before(world, other)
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert (held(), excluded()) == (["gpu2"], ["gpu2"])


# --- the order in which it came -----------------------------------------------------------------------------------


def told(incident: Incident) -> dict[str, Any]:
    names = ("cause", "summary", "reason", "confidence", "budget", "suspects", "ranks", "assessment")
    return {name: getattr(incident, name) for name in names}


def lines(incident: Incident) -> set[tuple[str, str, int | None, str]]:
    return set(incident.evidence.values_list("code", "stance", "rank", "node"))


@pytest.mark.parametrize("how", ["reversed", "twice"])
def test_another_order_or_a_second_copy_makes_the_same_incident(db: None, how: str) -> None:
    found = []
    for otherwise in (False, True):
        before = transaction.savepoint()
        world = World()
        world.start()
        ecc_by_the_jobs_word(world)
        if otherwise:
            arrive_again(how)
        world.run(14)
        found.append((told(world.incident()), lines(world.incident()), held(), excluded()))
        transaction.savepoint_rollback(before)
    assert found[0] == found[1] and found[0][3] == ["gpu2"]


def arrive_again(how: str) -> None:
    signs = list(Sign.objects.order_by("-pk"))
    if how == "reversed":
        Sign.objects.all().delete()
    for number, sign in enumerate(signs, start=100):
        sign.pk, sign.seq = None, number
        sign.save(force_insert=True)


def test_lines_that_only_follow_are_kept_as_such(world: World) -> None:
    world.start()
    ecc_by_the_jobs_word(world)
    world.run(14)
    stances = Evidence.objects.filter(incident=world.incident()).values_list("code", "stance")
    assert {s for code, s in stances if code == "nccl.remote_error"} == {"cascade"}
    assert {s for code, s in stances if code == "cuda.ecc"} == {"accuses"}
    assert Evidence.objects.filter(code="nccl.remote_error").count() == 3
