"""With less than all rights: what is known is not tried, what is refused is remembered, people are told the rest."""

from typing import Any

import pytest

from controller.decision import actions, rights
from controller.errors import RefusalKind, SlurmRefused
from controller.models import Action, Cluster, Decision, Exclusion, NodeHold
from controller.slurm import unsupported
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]

NODE_WRITES = frozenset({"drain_node", "down_node", "resume_node"})
JOB_WRITES = frozenset({"hold_job", "release_job", "requeue_job", "exclude_nodes", "set_start_now", "set_reservation"})
GRANT = "sacctmgr -i modify user where name=relume set AdminLevel=Administrator"


class Limited:
    """The in-memory Slurm, which refuses these calls as Slurm refuses them to whom they are not permitted."""

    def __init__(self, port: Any, refused: frozenset[str]) -> None:
        self.port, self.refused, self.tried = port, refused, []

    def __getattr__(self, name: str) -> Any:
        if name not in self.refused:
            return getattr(self.port, name)

        def refuse(*args: Any, **kwargs: Any) -> None:
            self.tried.append(name)
            raise SlurmRefused(f"{name}: Invalid user id", kind=RefusalKind.NOT_PERMITTED, text="Invalid user id")

        return refuse


def limit(world: World, refused: frozenset[str], *lacking: str) -> Limited:
    """Slurm refuses these calls; the controller knows that it lacks `lacking`."""
    world.port = limited = Limited(world.slurm, refused)
    found = {name: {"may": rights.NO, "proof": "tried", "grant": GRANT} for name in lacking}
    Cluster.objects.update_or_create(
        name="fake", defaults={"rights": {"capabilities": found, "identities": {"jobs": {"user": "relume"}}}}
    )
    return limited


def test_without_the_right_to_drain_the_job_is_kept_away_and_the_note_says_how_to_grant_it(world: World) -> None:
    limited = limit(world, NODE_WRITES, rights.UPDATE_NODES)
    world.start()
    world.kill_host("gpu2")
    world.run(8)
    (note,) = Decision.objects.exclude(incident=None).earliest("pk").notes
    assert note == (
        f"gpu2 not held: the controller may not drain nodes here; grant it with: {GRANT}; this job stays away from it"
    )
    assert limited.tried == [] and not NodeHold.objects.exists()
    assert world.action(actions.REQUEUE).params["exclude"] == ["gpu2"]
    assert Exclusion.objects.get().node.name == "gpu2"


def test_a_refused_drain_is_remembered_and_the_job_recovers_all_the_same(world: World) -> None:
    limited = limit(world, NODE_WRITES)
    world.start()
    world.refusing.add("gpu2")
    world.kill_host("gpu2")
    world.run(8)
    assert limited.tried == ["drain_node"]
    hold = world.action(actions.HOLD_NODE)
    assert (hold.state, hold.optional) == ("refused", True) and "Invalid user id" in hold.outcome
    assert world.action(actions.REQUEUE).state not in ("refused", "cancelled")
    known = Cluster.objects.get().rights
    assert rights.may(known, rights.UPDATE_NODES) is False
    assert "Invalid user id" in known["capabilities"][rights.UPDATE_NODES]["proof"]
    assert rights.may(known, rights.JOBS_OF_OTHERS) is None, "nothing else is concluded from it"
    assert not NodeHold.objects.exclude(state="released").exists(), "what was never drained is not held"


def test_without_the_right_over_jobs_people_get_the_commands_and_the_node_is_held_all_the_same(world: World) -> None:
    limited = limit(world, JOB_WRITES, rights.JOBS_OF_OTHERS)
    world.start(excluded=["gpu4"])
    world.kill_host("gpu2")
    world.run(8)
    incident = world.incident()
    assert incident.state == "awaiting_operator" and incident.budget == "none"
    assert incident.ask.startswith("the controller may not requeue jobs of ada here. Run as ada or as an operator: ")
    for command in (
        f"scontrol requeuehold {world.job_id};",
        f"scontrol update JobId={world.job_id} ExcNodeList=gpu2,gpu4 StartTime=now;",
        f"scontrol release {world.job_id}",
    ):
        assert command in incident.ask
    assert incident.ask.endswith(f"Grant it with: {GRANT}")
    assert limited.tried == []
    kinds = dict(Action.objects.values_list("kind", "state"))
    assert kinds == {actions.HOLD_NODE: "done", actions.NOTIFY: "done"}
    assert world.effects("drain", "down") == ["drain gpu2", "down gpu2"]
    # The host is dead: with its node DOWN Slurm queues the job again by itself, and it starts elsewhere.
    world.run(140)
    assert world.slurm.read_job(world.job_id).state.running
    world.resume_trains()
    world.run(3)
    assert (world.incident().state, world.job().state) == ("resolved", "training")


def test_a_job_of_our_own_needs_no_right_over_others(world: World) -> None:
    limit(world, frozenset(), rights.JOBS_OF_OTHERS)
    cluster = Cluster.objects.get()
    cluster.rights["identities"]["jobs"]["user"] = "ada"
    cluster.save()
    world.start()
    world.kill_host("gpu2")
    world.run(8)
    assert world.slurm.read_job(world.job_id).restarts == 1 and world.incident().ask == ""


def test_a_refused_requeue_is_remembered_and_people_get_the_commands(world: World) -> None:
    limited = limit(world, JOB_WRITES)
    world.start()
    world.kill_host("gpu2")
    world.run(12)
    assert limited.tried, "not known: tried"
    assert rights.may(Cluster.objects.get().rights, rights.JOBS_OF_OTHERS) is False
    incident = world.incident()
    assert incident.state == "awaiting_operator"
    assert f"By hand: scontrol requeuehold {world.job_id}" in incident.ask


def test_in_approve_mode_nothing_is_held_without_a_persons_word(world: World) -> None:
    limit(world, JOB_WRITES, rights.JOBS_OF_OTHERS)
    world.set_policy(mode="approve")
    world.start()
    world.kill_host("gpu2")
    world.run(5)
    assert world.incident().state == "awaiting_operator" and "may not requeue" in world.incident().ask
    assert world.effects() == []


def test_a_job_on_cloud_nodes_is_only_watched(world: World) -> None:
    world.start()
    with world.slurm.world() as slurm:
        for node in slurm.nodes.values():
            node.flags.append("CLOUD")
    world.run(3)
    world.kill_host("gpu2")
    world.run(8)
    incident = world.incident()
    assert incident.state == "awaiting_operator" and world.job().state == "stopped"
    assert unsupported.refusal(unsupported.CLOUD_NODES) in incident.ask
    assert world.effects() == [] and list(Action.objects.values_list("kind", flat=True)) == [actions.NOTIFY]
