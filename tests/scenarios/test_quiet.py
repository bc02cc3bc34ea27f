"""Nothing happens when nothing is proved: no hold, no requeue, no incident, no Slurm write."""

import pytest

from controller.models import Action, AgentReport, Cluster, Incident, NodeCheck
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def nothing_happened(world: World) -> None:
    assert Incident.objects.count() == 0 and Action.objects.count() == 0
    assert world.effects() == []
    assert world.job().state == "training"


def test_an_agent_silent_for_two_seconds(world: World) -> None:
    world.start()
    world.silent_agents.add("gpu2")
    world.run(2)
    world.silent_agents.clear()
    world.run(10)
    nothing_happened(world)


def test_a_host_that_answers_while_its_agent_is_silent(world: World) -> None:
    world.start()
    world.silent_agents.add("gpu2")
    world.run(60)
    nothing_happened(world)
    assert NodeCheck.objects.filter(outcome="open").exists()


def test_a_refusing_slurmd_is_a_living_host(world: World) -> None:
    world.start()
    world.silent_agents.add("gpu2")
    world.refusing.add("gpu2")
    world.run(60)
    nothing_happened(world)


def test_a_node_that_only_the_controller_cannot_reach(world: World) -> None:
    world.start()
    world.silent_agents.add("gpu2")
    world.dark_from_controller.add("gpu2")
    world.run(60)
    nothing_happened(world)
    assert NodeCheck.objects.filter(vantage="gpu1", node__name="gpu2", outcome="open").exists()


def test_the_controller_cut_off_from_everybody(world: World) -> None:
    world.start()
    world.controller_cut = True
    world.run(60)
    nothing_happened(world)
    assert NodeCheck.objects.filter(vantage="controller", outcome="timeout").exists()
    world.controller_cut = False
    world.run(10)
    nothing_happened(world)


def test_slurm_away_for_a_minute(world: World) -> None:
    world.start()
    world.slurm.stop_answering()
    world.run(60)
    cluster = Cluster.objects.get()
    assert "SlurmUnavailable" in cluster.view_error and world.now - cluster.view_at.timestamp() > 55
    world.slurm.stop_answering(away=False)
    world.run(10)
    nothing_happened(world)
    assert Cluster.objects.get().view_error == ""


def test_a_node_lost_while_slurm_is_away_waits_for_slurm(world: World) -> None:
    world.start()
    world.slurm.stop_answering()
    world.run(20)
    world.kill_host("gpu2")
    world.run(30)
    assert Incident.objects.count() == 0
    world.slurm.stop_answering(away=False)
    world.run(12)
    assert world.incident().suspects == ["gpu2"]
    assert world.slurm_job().restarts == 1


def test_an_unreadable_slurm_is_no_state(world: World) -> None:
    world.start()
    world.slurm.fail_next("unreadable", times=20, call="read_cluster")
    world.run(30)
    nothing_happened(world)


def test_a_controller_that_was_away_waits_a_full_silent_period(world: World) -> None:
    world.start()
    world.advance(600)
    world.silent_agents.update({"gpu1", "gpu2"})
    world.dark.update({"gpu2"})
    world.run(3)
    assert Incident.objects.count() == 0, "silence of the time away is not judged"
    world.silent_agents.discard("gpu1")
    world.silent_agents.discard("gpu2")
    world.dark.clear()
    world.run(10)
    nothing_happened(world)
    assert AgentReport.objects.count() == 2


def test_expected_silence(world: World) -> None:
    world.start()
    with world.slurm.world() as slurm:
        slurm.nodes["gpu2"].flags.append("REBOOT_ISSUED")
    world.run(4)
    world.silent_agents.add("gpu2")
    world.dark.add("gpu2")
    world.run(30)
    nothing_happened(world)


def test_job_ids_that_go_back_fall_to_observe(world: World) -> None:
    world.start()
    with world.slurm.world() as slurm:
        slurm.next_job_id -= 1
    world.run(3)
    cluster = Cluster.objects.get()
    assert cluster.mode == "observe" and "went back" in cluster.mode_reason
    world.kill_host("gpu2")
    world.run(20)
    assert world.incident().state == "observed_only" and world.effects() == []


def test_a_view_from_the_future_falls_to_observe(world: World) -> None:
    world.start()
    world.advance(-3600)
    world.run(3)
    cluster = Cluster.objects.get()
    assert cluster.mode == "observe" and "later than now" in cluster.mode_reason
    assert abs(cluster.view_at.timestamp() - world.now) < 3
