"""Starts that fail, time limits and preemption, through the whole controller on the in-memory Slurm."""

from typing import Any

import pytest

from controller.clock import aware
from controller.decision.policy import Policy
from controller.models import Action, Attempt, Cluster, Exclusion, Incident, NodeHold, TrainingJob
from controller.slurm import fake_rules
from controller.slurm.fake_rules import FakeOptions
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def break_node(world: World, name: str, how: str) -> None:
    with world.slurm.world() as slurm:
        slurm.nodes[name].broken = how


def enrol(world: World, job_id: str, run_id: str = "tj-0000000000aa") -> TrainingJob:
    """A training job of which no agent has spoken yet."""
    return TrainingJob.objects.create(
        run_id=run_id,
        owner="ada",
        cluster=Cluster.objects.get_or_create(name="fake")[0],
        slurm_job_id=job_id,
        state_at=aware(world.now),
        created_at=aware(world.now),
    )


def submit(world: World, run_id: str = "tj-0000000000aa", **job: Any) -> TrainingJob:
    world.job_id = world.slurm.submit(**job)
    return enrol(world, world.job_id, run_id)


def keep_accounting(world: World) -> None:
    with world.slurm.world() as slurm:
        slurm.config["AccountingStorageType"] = "accounting_storage/slurmdbd"


def test_a_start_that_fails_waits_and_is_made_elsewhere(world: World) -> None:
    """S27: held after a launch failure, pending for ever until released. Only accounting still knows the host."""
    keep_accounting(world)
    break_node(world, "gpu1", "spool")
    submit(world)
    world.run(6)
    incident = world.incident()
    assert (incident.cause, incident.suspects, incident.budget) == ("slurm_infra", ["gpu1"], "infrastructure")
    assert world.effects("release", "hold", "exclude", "drain") == [], "the next start waits"
    action = world.action("requeue_excluding")
    assert (action.due_at - action.created_at).total_seconds() == 30 and "waits 30 s" in action.reason
    world.run(22)
    assert world.effects("release") == []
    world.run(14)
    job = world.slurm_job()
    assert (job.base, job.nodes, job.excluded, job.restarts) == ("RUNNING", ["gpu2"], ["gpu1"], 1)
    assert len(world.effects("release")) == 1 and world.effects("drain", "down", "requeuehold") == []
    assert world.incident().state == "resolved" and NodeHold.objects.count() == 0


def test_where_nobody_knows_the_host_it_is_only_started_again(world: World) -> None:
    break_node(world, "gpu1", "spool")
    submit(world)
    world.run(4)
    assert world.incident().suspects == [] and "does not say on which node" in world.incident().reason
    break_node(world, "gpu1", "")
    world.run(40)
    assert world.slurm_job().base == "RUNNING" and world.slurm_job().excluded == []
    assert world.incident().state == "resolved" and Exclusion.objects.count() == 0


def test_a_task_of_an_array_is_released_alone(world: World) -> None:
    keep_accounting(world)
    break_node(world, "gpu1", "spool")
    world.job_id = world.slurm.submit_array([0, 1])[1]
    enrol(world, world.job_id)
    world.run(45)
    with world.slurm.world() as slurm:
        other = slurm.jobs["1_0"]
    job = world.slurm_job()
    assert (job.job_id, job.base, job.nodes, job.excluded) == ("1_1", "RUNNING", ["gpu3"], ["gpu1"])
    assert (other.base, other.restarts, other.excluded) == ("RUNNING", 0, [])
    assert world.effects("release") == ["release 1_1"]


def test_the_node_whose_prolog_failed_is_named_and_its_drain_adopted_only(world: World) -> None:
    break_node(world, "gpu2", "prolog")
    submit(world, num_nodes=2)
    world.run(45)
    assert world.incident().suspects == ["gpu2"], "not gpu1, the batch host"
    job = world.slurm_job()
    assert (job.base, job.nodes, job.excluded) == ("RUNNING", ["gpu1", "gpu3"], ["gpu2"])
    assert world.slurm.read_node("gpu2").reason == "Prolog error" and world.effects("drain") == []


def test_a_black_hole_that_is_the_only_free_node_is_held_at_the_second_failure(world: World) -> None:
    """S25: no hot loop. With the node away the job could never run, so the exclusion cannot stand."""
    keep_accounting(world)
    with world.slurm.world() as slurm:
        for name in ("gpu2", "gpu3", "gpu4"):
            slurm.nodes[name].partitions = ["other"]
        slurm.nodes["gpu1"].broken = "spool"
    submit(world)
    world.run(60)
    first, second = Incident.objects.order_by("pk")
    assert (first.suspects, second.suspects) == (["gpu1"], ["gpu1"])
    assert (second.detected_at - first.detected_at).total_seconds() >= 30
    assert world.effects("drain") == ["drain gpu1"] and len(world.effects("release")) == 1
    assert world.slurm.read_node("gpu1").state.drain
    assert second.state == "awaiting_operator" and f"scontrol release {world.job_id}" in second.ask
    assert TrainingJob.objects.get().state == "stopped" and second.budget == "none"
    world.run(60)
    assert Incident.objects.count() == 2 and world.slurm_job().restarts == 2, "nobody tries again by himself"
    break_node(world, "gpu1", "")
    world.slurm.resume_node("gpu1")
    world.slurm.release_job(world.job_id)
    world.slurm.set_start_now(world.job_id)
    world.run(6)
    assert world.slurm_job().base == "RUNNING" and Incident.objects.latest("pk").state == "resolved"


def test_the_second_failure_on_a_node_by_another_job_holds_it(world: World) -> None:
    keep_accounting(world)
    break_node(world, "gpu1", "spool")
    submit(world)
    world.run(45)
    submit(world, "tj-0000000000bb", required=[])
    with world.slurm.world() as slurm:
        for job in slurm.jobs.values():
            if job.base == "RUNNING":
                job.cpus_per_node = 4
    world.run(45)
    assert world.effects("drain") == ["drain gpu1"]
    assert NodeHold.objects.get().node.name == "gpu1"
    assert world.slurm_job().base == "RUNNING" and "gpu1" not in world.slurm_job().nodes
    assert {i.state for i in Incident.objects.all()} == {"resolved"}


def test_a_start_that_fails_during_a_recovery_is_its_own_incident(world: World) -> None:
    """gpu1, the batch host, dies; gpu2 takes its part and cannot launch; the third pair can."""
    keep_accounting(world)
    world.start()
    break_node(world, "gpu2", "spool")
    world.kill_host("gpu1")
    world.run(25)
    first, second = Incident.objects.order_by("pk")
    assert (first.cause, first.state) == ("node_lost", "abandoned")
    assert (second.cause, second.suspects, second.state) == ("slurm_infra", ["gpu2"], "acting")
    world.run(35)
    job = world.slurm_job()
    assert (job.base, job.nodes, job.excluded, job.restarts) == ("RUNNING", ["gpu3", "gpu4"], ["gpu1", "gpu2"], 2)
    world.resume_trains()
    world.run(3)
    assert Incident.objects.latest("pk").state == "resolved" and world.job().state == "training"
    assert world.effects("drain") == ["drain gpu1"]


def test_slurms_own_limit_stops_and_a_persons_release_is_believed(world: World) -> None:
    with world.slurm.world() as slurm:
        slurm.config["MaxBatchRequeue"] = "1"
    break_node(world, "gpu1", "deaf")
    submit(world)
    world.run(10)
    incident = world.incident()
    assert (incident.cause, incident.state) == ("launch_limit", "awaiting_operator")
    assert "MaxBatchRequeue" in incident.reason and f"scontrol release {world.job_id}" in incident.ask
    assert world.effects() == [] and world.slurm_job().held == "JobHoldMaxRequeue"
    break_node(world, "gpu1", "")
    world.slurm.release_job(world.job_id)
    world.slurm.set_start_now(world.job_id)
    world.run(6)
    assert world.slurm_job().base == "RUNNING" and world.incident().state == "resolved"


def test_a_launch_that_no_host_takes_is_queued_again_without_it(world: World) -> None:
    world.slurm = type(world.slurm)(lambda: aware(world.now), options=FakeOptions(completing=6.0))
    world.port = world.slurm
    for index, name in enumerate(("gpu1", "gpu2")):
        world.slurm.add_nodes(name, address=f"10.77.0.{index + 1}", port=6818)
    break_node(world, "gpu1", "deaf")
    submit(world)
    world.run(15)
    incident = world.incident()
    assert (incident.cause, incident.suspects) == ("slurm_infra", ["gpu1"])
    world.run(40)
    job = world.slurm_job()
    assert (job.base, job.nodes, job.excluded, job.restarts) == ("RUNNING", ["gpu2"], ["gpu1"], 1)
    assert world.effects("requeue", "requeuehold", "drain") == [], "Slurm had queued it already"


def test_observe_mode_touches_no_held_job(world: World) -> None:
    world.policy = Policy(mode="observe")
    break_node(world, "gpu1", "spool")
    submit(world)
    world.run(45)
    assert world.incident().state == "observed_only" and world.effects() == []
    assert Action.objects.count() == 0


# --- time --------------------------------------------------------------------------------------------------------


def test_a_run_that_reaches_its_time_limit_goes_on(world: World) -> None:
    """S33, A43: Slurm does not queue it again. Nobody is blamed, and its own budget pays."""
    world.start(time_limit_s=20.0)
    Attempt.objects.update(step=300)
    world.run(30)
    incident = world.incident()
    assert (incident.cause, incident.suspects, incident.budget) == ("time_limit", [], "time_limit")
    assert world.effects("drain", "down", "exclude") == []
    assert world.effects("requeuehold") == [f"requeuehold {world.job_id}"]
    assert Attempt.objects.get(generation=1).outcome == "time_limit"
    assert world.slurm_job().restarts == 1
    world.resume_trains()
    world.run(3)
    assert world.incident().state == "resolved" and world.job().state == "training"


def test_time_that_brought_nothing_is_not_given_again(world: World) -> None:
    world.start(time_limit_s=20.0)
    world.run(30)
    assert world.slurm_job().restarts == 1
    world.run(30)
    last = Incident.objects.latest("pk")
    assert (last.cause, last.state) == ("time_limit", "awaiting_operator") and "no new step" in last.ask
    assert world.slurm_job().base == "TIMEOUT" and world.slurm_job().restarts == 1


def test_a_job_that_forbids_it_is_told_what_to_do(world: World) -> None:
    world.start(time_limit_s=20.0, requeue=False)
    world.run(30)
    assert world.incident().state == "awaiting_operator" and "--no-requeue" in world.incident().ask
    assert world.effects() == [] and world.slurm_job().base == "TIMEOUT"


def test_preemption_is_slurms_own_doing(world: World) -> None:
    """A46: already queued again. No incident, no charge, no second copy; the run is followed to its next attempt."""
    world.start()
    with world.slurm.world() as slurm:
        job = slurm.jobs[world.job_id]
        fake_rules.kill_and_requeue(slurm, job, world.now, FakeOptions(requeue_delay=20.0), hold=False, why="PREEMPTED")
        job.killed_at = None
    world.run(8)
    assert world.job().state == "queued" and Attempt.objects.get().outcome == "requeued"
    world.slurm.set_start_now(world.job_id)
    world.run(5)
    assert Incident.objects.count() == 0 and Action.objects.count() == 0
    assert [effect for effect in world.effects() if not effect.startswith("start_now")] == []
    assert Attempt.objects.latest("generation").restart_count == 1
