"""Other causes, modes, budgets and ceilings."""

from dataclasses import replace

import pytest

from controller.clock import aware
from controller.decision.admit import admit
from controller.decision.policy import Budget, Ceilings, Policy
from controller.ledger import commit as committing
from controller.models import Action, Attempt, Cluster, Exclusion, Incident, NodeHold
from controller.sweep import sweep
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def kill_rank(world: World, *, signal: int | None = 9, exit_code: int | None = None) -> None:
    attempt = Attempt.objects.order_by("-generation")[0]
    attempt.exits = [
        {"rank": 2, "node": "gpu2", "exit_code": exit_code, "signal": signal, "at": world.now, "torn_down": False}
    ]
    attempt.save()


def test_a_killed_process_is_a_requeue_without_exclusion(world: World) -> None:
    world.start()
    kill_rank(world)
    world.run(12)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.ranks) == ("process_died", "process", [2])
    assert world.effects("drain", "down", "exclude") == [] and Exclusion.objects.count() == 0
    assert world.effects("requeuehold", "requeue") == [f"requeuehold {world.job_id}"]
    job = world.slurm_job()
    assert (job.base, job.restarts, job.held) == ("RUNNING", 1, "")


def test_a_job_that_failed_by_itself_is_requeued_from_failed(world: World) -> None:
    world.start()
    kill_rank(world)
    world.slurm.end_job(world.job_id, "FAILED", exit_code=75)
    world.run(14)
    assert world.effects("requeuehold") == [f"requeuehold {world.job_id}"]
    assert (world.slurm_job().base, world.slurm_job().restarts) == ("RUNNING", 1)


def test_a_users_error_stops_and_asks(world: World) -> None:
    world.start()
    kill_rank(world, signal=None, exit_code=1)
    world.run(10)
    assert (world.incident().cause, world.incident().state) == ("user_error", "awaiting_operator")
    assert world.job().state == "stopped" and world.effects() == []
    assert world.action("notify").state == "done"


def test_a_spent_budget_asks(world: World) -> None:
    world.set_policy(budget=Budget(process=1))
    world.start()
    kill_rank(world)
    world.run(14)
    world.resume_trains()
    world.run(4)
    assert world.incident().state == "resolved"
    Attempt.objects.filter(generation=2).update(step=200)
    kill_rank(world)
    world.run(14)
    last = Incident.objects.order_by("-pk")[0]
    assert last.state == "awaiting_operator" and "budget spent: 1 of 1 process" in last.ask
    assert world.slurm_job().restarts == 1


def test_no_progress_twice_at_the_same_step_asks(world: World) -> None:
    world.start()
    for _ in range(2):
        kill_rank(world)
        world.run(14)
    kill_rank(world)
    world.run(14)
    assert Incident.objects.count() == 3
    last = Incident.objects.order_by("-pk")[0]
    assert "no progress" in last.ask and world.slurm_job().restarts == 2
    assert Incident.objects.filter(state="abandoned").count() == 2


def test_observe_mode_records_once_and_touches_nothing(world: World) -> None:
    world.policy = Policy(mode="observe")
    world.start()
    world.kill_host("gpu2")
    world.run(20)
    assert world.incident().state == "observed_only"
    assert Action.objects.count() == 0 and world.effects() == []
    assert world.job().state == "training" and Attempt.objects.get().state == "running"


def test_approve_mode_waits_for_a_person(world: World) -> None:
    world.policy = Policy(mode="approve")
    world.start()
    world.kill_host("gpu2")
    world.run(15)
    incident = world.incident()
    assert incident.state == "awaiting_operator" and world.effects() == []
    assert set(Action.objects.exclude(kind="notify").values_list("state", flat=True)) == {"proposed"}
    assert world.action("notify").state == "done"
    assert world.job().state == "training"
    committing.approve(incident, by="eve", reason="yes", policy=world.policy, now=world.now)
    world.run(10)
    assert world.effects("drain", "down") == ["drain gpu2", "down gpu2"]
    assert world.slurm_job().restarts == 1 and world.incident().state == "recovering"


def test_what_nobody_approves_expires(world: World) -> None:
    world.policy = Policy(mode="approve", limits=replace(Policy().limits, action_expires_s=10.0))
    world.start()
    world.kill_host("gpu2")
    world.run(30)
    assert set(Action.objects.exclude(kind="notify").values_list("state", flat=True)) == {"expired"}
    assert world.effects() == [] and NodeHold.objects.get().state == "released"


def test_a_ceiling_leaves_the_exclusion(world: World) -> None:
    world.set_policy(ceilings=Ceilings(max_nodes_out=1))
    world.slurm.drain_node("gpu4", "somebody's")
    world.start()
    world.kill_host("gpu2")
    with world.slurm.world() as slurm:
        slurm.nodes["gpu4"].drain = True
    world.run(20)
    assert world.effects("drain", "down") == ["drain gpu4"]
    job = world.slurm_job()
    assert (job.restarts, job.excluded, job.base) == (1, ["gpu2"], "RUNNING")


@pytest.mark.parametrize("counted", [True, False])
def test_too_few_nodes_left_for_the_exclusion(world: World, monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    """Counted before, it is not written; where it cannot be counted, Slurm's BadConstraints takes it back."""
    if not counted:
        monkeypatch.setattr("controller.remediation.handlers.requeue.exclusions.capacity", lambda *_, **__: None)
    world.start()
    with world.slurm.world() as slurm:
        del slurm.nodes["gpu3"], slurm.nodes["gpu4"]
    world.run(3)
    world.kill_host("gpu2")
    world.run(20)
    assert world.slurm_job().excluded == [] and len(world.effects("exclude")) == (0 if counted else 2)
    action = world.action("requeue_excluding")
    assert action.state == "done" and "too few nodes" in action.outcome
    assert not Exclusion.objects.filter(expires_at__gt=action.ended_at).exists()


def test_the_users_own_exclusions_and_earlier_ones_are_kept(world: World) -> None:
    world.start(excluded=["gpu4"])
    world.kill_host("gpu2")
    world.run(14)
    assert world.slurm_job().excluded == ["gpu2", "gpu4"]
    assert world.slurm_job().nodes == ["gpu1", "gpu3"]


def test_a_launch_spoiled_by_slurm_is_repeated_once(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    world.auto_resume = False
    spoiled = []

    def spoil(seconds: float) -> None:
        world.now += seconds
        job = world.slurm_job()
        if job.base == "RUNNING" and job.restarts == 1 and not spoiled:
            world.slurm.end_job(world.job_id, "FAILED", exit_code=1)
            spoiled.append(world.now)

    world.advance = spoil  # type: ignore[method-assign]
    world.run(20)
    assert spoiled and (world.slurm_job().base, world.slurm_job().restarts) == ("RUNNING", 2)
    assert world.action("requeue_excluding").state == "done"


def test_two_sweepers_open_one_incident(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.now += 1
        world.agents_speak()
        one, two = world.site, replace(world.site, owner="other")
        inside = {"done": False}

        def rival(targets, limit, one=one, two=two, inside=inside):  # type: ignore[no-untyped-def]
            if not inside["done"]:
                inside["done"] = True
                assert "another process" in sweep(two).skipped
            return world.probe(targets, limit)

        sweep(replace(one, probe=rival))
        sweep(two)
    world.run(10)
    assert Incident.objects.count() == 1 and world.slurm_job().restarts == 1


def test_a_lost_lease_commits_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stolen(*args):  # type: ignore[no-untyped-def]
        Cluster.objects.update(lease_owner="thief", lease_until=aware(world.now + 0.5))
        return admit(*args)

    world.start()
    world.kill_host("gpu2")
    monkeypatch.setattr("controller.sweep.admit", stolen)
    world.run(10)
    assert Incident.objects.count() == 0
    assert any(swept.lost for swept in world.swept)
    monkeypatch.setattr("controller.sweep.admit", admit)
    world.run(10)
    assert world.incident().state == "recovering"


def test_a_script_without_agent_is_requeued_when_its_node_goes_down(world: World) -> None:
    world.start()
    Attempt.objects.all().delete()
    world.auto_resume = False
    world.run(40)
    attempt = Attempt.objects.get()
    assert attempt.agentless and attempt.nodes == ["gpu1", "gpu2"]
    world.kill_host("gpu2")
    world.run(25)
    assert world.incident().cause in ("node_lost", "node_down")
    assert world.slurm_job().restarts == 1 and "gpu2" not in world.slurm_job().nodes
    assert world.incident().state == "resolved"


def test_a_task_of_an_array_is_requeued_alone_and_waits_for_nodes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def array(**job: object) -> str:
        return world.slurm.submit_array([0, 1], **job)[1]

    monkeypatch.setattr(world.slurm, "submit", array)
    world.start()
    assert world.job_id == "1_1"
    world.kill_host("gpu2")
    world.run(20)
    with world.slurm.world() as slurm:
        hit, other = slurm.jobs["1_1"], slurm.jobs["1_0"]
    assert (hit.base, hit.restarts, hit.held, hit.excluded) == ("PENDING", 1, "", ["gpu2"])
    assert (other.base, other.restarts) == ("RUNNING", 0)
    action = world.action("requeue_excluding")
    assert action.state == "done" and "waits: Resources" in action.outcome
    assert world.incident().state == "recovering"
