"""A live job's own signs, end to end: whose fault it is called, who is kept away, who is held, and what it costs."""

from typing import Any

import pytest
from django.db import transaction

from controller.clock import aware
from controller.decision.policy import Budget
from controller.models import AgentReport, Attempt, Evidence, Exclusion, Incident, NodeHold, Sign, TrainingJob
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]

ECC = "CUDA error: uncorrectable ECC error encountered"
XID_48 = {"code": "xid.48", "raw": "NVRM: Xid (PCI:0000:9b:00): 48, DBE", "attrs": {"number": 48}}


def place_ranks(on_each: int = 2) -> None:
    """Ranks in the order of nodes, as the agents tell them."""
    quiet = {"state": "running", "phase": "training", "step": 100, "pid": 400, "exit_code": None, "signal": None}
    quiet |= {"progress_age_s": 0.1, "beat_age_s": 0.1, "pace": {}}
    reports = sorted(AgentReport.objects.all(), key=lambda report: int(report.node.removeprefix("gpu")))
    for index, report in enumerate(reports):
        report.ranks = [{**quiet, "rank": on_each * index + local} for local in range(on_each)]
        report.save(update_fields=["ranks"])


def die(world: World, *ranks: tuple[int, str], signal: int | None = 6, exit_code: int | None = None) -> None:
    """These ranks end by themselves, now."""
    how = {"exit_code": exit_code, "signal": signal, "at": world.now, "torn_down": False}
    attempt = Attempt.objects.order_by("-generation")[0]
    attempt.exits = [{"rank": rank, "node": node, **how} for rank, node in ranks]
    attempt.save(update_fields=["exits"])


def ecc_by_the_jobs_word(world: World) -> None:
    world.job_sign("gpu2", "cuda.ecc", 2, raw=ECC, attrs={"text": ECC})
    for rank, node in ((0, "gpu1"), (1, "gpu1"), (3, "gpu2")):
        world.job_sign(node, "nccl.remote_error", rank, layer="library")
    die(world, (2, "gpu2"))


def held() -> list[str]:
    return sorted(NodeHold.objects.values_list("node__name", flat=True))


def excluded() -> list[str]:
    return sorted(Exclusion.objects.values_list("node__name", flat=True))


def blamed_nobody(world: World) -> bool:
    return held() == excluded() == world.effects("drain", "down", "exclude") == []


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


# --- the program's own fault --------------------------------------------------------------------------------------


def traceback_everywhere(world: World) -> None:
    for rank, node in ((0, "gpu1"), (1, "gpu1"), (2, "gpu2"), (3, "gpu2")):
        text = "mat1 and mat2 shapes cannot be multiplied (8x512 and 768x512)"
        world.job_sign(
            node, "python.exception", rank, raw=f"RuntimeError: {text}", attrs={"type": "RuntimeError", "text": text}
        )
        world.job_sign(node, "nccl.remote_error", rank, layer="library")
        world.job_sign(node, "nccl.peer_closed", rank, layer="library", attrs={"peer": "10.77.0.2"})
    die(world, (0, "gpu1"), (1, "gpu1"), (2, "gpu2"), (3, "gpu2"), signal=None, exit_code=1)


def test_a_traceback_on_every_rank_is_the_users_inside_nccl_lines(world: World) -> None:
    world.set_policy(budget=Budget(user=1))
    world.start()
    place_ranks()
    traceback_everywhere(world)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.suspects) == ("user_error", "user", [])
    assert incident.assessment["verdict"] == "user_code" and incident.ranks == [0, 1, 2, 3]
    assert blamed_nobody(world) and world.slurm_job().restarts == 1


def test_without_a_budget_for_it_a_person_is_asked(world: World) -> None:
    world.start()
    traceback_everywhere(world)
    world.run(14)
    assert (world.incident().cause, world.incident().state) == ("user_error", "awaiting_operator")
    assert blamed_nobody(world) and world.slurm_job().restarts == 0


def test_ranks_that_abort_after_a_traceback_are_still_the_users(world: World) -> None:
    world.start()
    traceback_everywhere(world)
    die(world, (0, "gpu1"), (1, "gpu1"), (2, "gpu2"), (3, "gpu2"), signal=6)
    world.run(14)
    assert (world.incident().cause, world.incident().state) == ("user_error", "awaiting_operator")
    assert blamed_nobody(world)


@pytest.mark.parametrize("how", [{"signal": 6}, {"signal": None, "exit_code": 1}])
def test_gpu_memory_that_ran_out_asks_and_requeues_nothing(world: World, how: dict[str, Any]) -> None:
    world.set_policy(budget=Budget(user=5))
    world.start()
    raw = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    world.job_sign("gpu2", "cuda.out_of_memory", 2, raw=raw, attrs={"text": raw})
    die(world, (2, "gpu2"), **how)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.state, incident.ranks) == ("gpu_oom", "awaiting_operator", [2])
    assert "smaller batch" in incident.ask and world.job().state == "stopped"
    assert world.effects() == [] and world.slurm_job().restarts == 0


# --- storage ------------------------------------------------------------------------------------------------------


def storage_fails(world: World, *places: tuple[int, str]) -> None:
    for rank, node in places:
        raw = "OSError: [Errno 116] Stale file handle: '/data/shard-3'"
        world.job_sign(node, "storage.stale", rank, raw=raw, attrs={"errno": 116, "path": "/data/shard-3"})
    die(world, *places, signal=None, exit_code=1)


def test_storage_that_fails_on_two_nodes_is_waited_for_and_nobody_is_kept_away(world: World) -> None:
    world.start()
    storage_fails(world, (0, "gpu1"), (2, "gpu2"))
    world.run(100)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.suspects) == ("data_or_storage", "infrastructure", [])
    assert world.slurm_job().restarts == 0, "the storage needs time"
    world.run(240)
    assert Incident.objects.count() == 1 and blamed_nobody(world)
    assert (world.slurm_job().base, world.slurm_job().restarts) == ("RUNNING", 1)


def test_storage_that_fails_on_one_node_keeps_the_job_away_from_it(world: World) -> None:
    world.start()
    storage_fails(world, (2, "gpu2"), (3, "gpu2"))
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.suspects, incident.assessment["withheld"]) == ("data_or_storage", ["gpu2"], [])
    assert (held(), excluded(), world.slurm_job().excluded) == ([], ["gpu2"], ["gpu2"])
    assert world.slurm_job().restarts == 1


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
