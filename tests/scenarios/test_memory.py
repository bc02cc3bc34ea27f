"""What is remembered between attempts and between jobs, end to end: strikes, the lines of earlier attempts, limits."""

import pytest

from controller.clock import aware
from controller.decision.policy import Budget, Limits
from controller.models import Attempt, Cluster, Evidence, Incident, Node, NodeHold, Sign, TrainingJob
from controller.replay import replay
from tests.scenarios.conftest import ECC, XID_48, die, ecc_by_the_jobs_word, excluded, held, place_ranks
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]
HOUR = 3600.0
LATER = 100  # generations of later jobs: the world's agents are those of the highest


def leave(world: World) -> None:
    """The present job ends well, with steps of its own after its restore, and its nodes are free."""
    world.slurm.end_job(world.job_id)
    Attempt.objects.update(finished_at=aware(world.now), first_step_at=aware(world.now))
    world.run(4)


def next_job(world: World, owner: str = "eve", num_nodes: int = 2) -> TrainingJob:
    """Another run of `owner` on gpu1, gpu2 and so on, training at step 100."""
    world.job_id = world.slurm.submit(num_nodes=num_nodes, user=owner)
    world.slurm.tick()
    at, number = aware(world.now), TrainingJob.objects.count()
    row = TrainingJob.objects.create(
        run_id=f"tj-{number:012}",
        name="other",
        owner=owner,
        cluster=Cluster.objects.get(),
        slurm_job_id=world.job_id,
        state_at=at,
        created_at=at,
        gpus=16,
    )
    world.attempt(row, LATER * number, 0, step=100, first_new_step_at=at)
    world.run(6)
    row.refresh_from_db()
    assert (row.state, world.slurm_job().nodes[1]) == ("training", "gpu2"), row.state_reason
    return row


def last_incident() -> Incident:
    return Incident.objects.order_by("-pk")[0]


def one_after_the_other(world: World, after_s: float = HOUR) -> Incident:
    """Ada's job says of gpu2 that its memory failed, by its own word; later eve's job there says so too."""
    world.start()
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert (held(), excluded(), last_incident().assessment["withheld"]) == ([], ["gpu2"], ["gpu2"])
    leave(world)
    world.advance(after_s)
    next_job(world)
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert Incident.objects.count() == 2
    return last_incident()


# --- strikes ------------------------------------------------------------------------------------------------------


def test_a_second_job_that_says_the_same_of_a_node_holds_it(world: World) -> None:
    incident = one_after_the_other(world)
    assert (incident.cause, incident.assessment["drain"], incident.assessment["withheld"]) == (
        "gpu_hardware",
        ["gpu2"],
        [],
    )
    assert (held(), world.effects("drain")) == (["gpu2"], ["drain gpu2"])
    assert "gpu2" not in world.slurm_job().nodes
    voice = incident.evidence.get(code="history.error")
    assert (voice.origin, voice.node, voice.stance) == ("controller", "gpu2", "accuses")
    assert TrainingJob.objects.get(owner="ada").run_id in voice.raw and ECC in voice.raw
    assert replay(incident.pk, world.policy).differences == []


def test_a_strike_is_forgotten_after_its_time(world: World) -> None:
    incident = one_after_the_other(world, after_s=25 * HOUR)
    assert (held(), incident.assessment["withheld"]) == ([], ["gpu2"])
    assert replay(incident.pk, world.policy).differences == []


def test_what_was_said_before_a_node_came_back_into_service_is_dealt_with(world: World) -> None:
    world.start()
    ecc_by_the_jobs_word(world)
    world.run(14)
    leave(world)
    at = aware(world.now)
    NodeHold.objects.create(
        node=Node.objects.get(name="gpu2"),
        state="released",
        token="relume:1",
        reason="tested",
        created_at=at,
        state_at=at,
        ended_at=at,
    )
    world.advance(HOUR)
    next_job(world)
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert world.effects("drain") == [] and last_incident().assessment["withheld"] == ["gpu2"]


def test_the_same_run_twice_on_a_node_is_one_voice(world: World) -> None:
    """It comes back to the node as soon as its exclusion is over."""
    world.set_policy(limits=Limits(exclusion_s=60.0))
    world.start(num_nodes=3)
    ecc_by_the_jobs_word(world)
    world.run(14)
    world.resume_trains()
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].excluded = []
        slurm.jobs[world.job_id].nodes = ["gpu1", "gpu2", "gpu3"]
    Attempt.objects.filter(generation=2).update(nodes=["gpu1", "gpu2", "gpu3"], step=300)
    world.run(120)
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert Incident.objects.count() == 2 and held() == []
    assert last_incident().assessment["withheld"] == ["gpu2"]


def test_a_fault_of_many_nodes_at_once_leaves_no_strike_on_any(world: World) -> None:
    world.start(num_nodes=4)
    place_ranks(1)
    nodes = world.slurm_job().nodes
    for rank, node in enumerate(nodes):
        world.job_sign(node, "cuda.ecc", rank, raw=ECC, attrs={"text": ECC})
    die(world, *enumerate(nodes))
    world.run(14)
    assert held() == excluded() == []
    leave(world)
    world.advance(HOUR)
    next_job(world)
    ecc_by_the_jobs_word(world)
    world.run(14)
    assert (held(), last_incident().assessment["withheld"]) == ([], ["gpu2"])


def test_a_code_that_nobody_can_place_is_told_to_come_again_in_another_job(world: World) -> None:
    xid = {**XID_48, "code": "xid.109", "raw": "NVRM: Xid (PCI:0000:9b:00): 109", "attrs": {"number": 109}}
    world.start()
    world.sense("gpu2", {**xid, "at": world.now})
    die(world, (2, "gpu2"))
    world.run(14)
    assert "one strike" in last_incident().assessment["node_actions"]["gpu2"]
    leave(world)
    world.advance(HOUR)
    next_job(world)
    world.sense("gpu2", {**xid, "at": world.now})
    die(world, (2, "gpu2"))
    world.run(14)
    assert "twice within a day" in last_incident().assessment["why"]
    assert (last_incident().assessment["exclude"], held()) == (["gpu2"], [])


# --- earlier attempts of the same job -----------------------------------------------------------------------------


def complains(world: World, rank: int, reporter: str, about: str) -> None:
    attrs = {"status": 12, "vendor_error": 129, "peer": about}
    raw = f"NCCL WARN NET/IB : Got completion from peer {about} with status=12"
    world.job_sign(reporter, "nccl.ib_completion", rank, layer="network", raw=raw, attrs=attrs)
    die(world, (rank, reporter))


def test_the_node_that_is_in_every_pair_of_two_attempts_is_the_one(world: World) -> None:
    world.start(num_nodes=3)
    place_ranks()
    complains(world, 0, "gpu1", "gpu2")
    world.run(14)
    first = last_incident()
    assert (first.assessment["verdict"], excluded()) == ("fabric", []), "either of two may be at fault"
    place_ranks()
    complains(world, 4, "gpu3", "gpu2")
    world.run(14)
    second = last_incident()
    assert second.pk != first.pk and Evidence.objects.filter(incident=first, stance="accuses").exists()
    assert (second.cause, second.suspects) == ("fabric", ["gpu2"])
    assert (held(), excluded()) == ([], ["gpu2"])
    assert replay(second.pk, world.policy).differences == []


def test_and_still_is_where_the_signs_themselves_were_forgotten(world: World) -> None:
    """The incident keeps its lines; without their details they name no pair, and nobody is blamed for it."""
    world.start(num_nodes=3)
    place_ranks()
    complains(world, 0, "gpu1", "gpu2")
    world.run(14)
    Sign.objects.all().delete()
    complains(world, 4, "gpu3", "gpu2")
    world.run(14)
    assert last_incident().assessment["verdict"] == "fabric" and excluded() == []


# --- how often ----------------------------------------------------------------------------------------------------


def raises(world: World) -> None:
    text = "bad sample 918273"
    world.job_sign("gpu2", "python.exception", 2, raw=f"ValueError: {text}", attrs={"type": "ValueError", "text": text})
    die(world, (2, "gpu2"), signal=None, exit_code=1)


def test_a_verdict_that_allows_one_requeue_gets_one(world: World) -> None:
    """The second attempt ends before it tells of any step: nobody knows that it is the same place, and the limit of the
    verdict stops it though the budget would pay for more."""
    world.set_policy(budget=Budget(user=5))
    world.start()
    raises(world)
    world.run(14)
    assert (last_incident().cause, world.slurm_job().restarts) == ("user_error", 1)
    Attempt.objects.filter(generation=2).update(step=None, start_step=None)
    raises(world)
    world.run(14)
    second = last_incident()
    assert (second.state, world.slurm_job().restarts) == ("awaiting_operator", 1)
    assert "user_code is requeued at most once" in second.ask
    assert replay(second.pk, world.policy).differences == []


def test_progress_gives_it_another_one(world: World) -> None:
    world.set_policy(budget=Budget(user=5))
    world.start()
    raises(world)
    world.run(14)
    world.resume_trains()
    Attempt.objects.filter(generation=2).update(step=200)
    world.run(4)
    raises(world)
    world.run(14)
    assert (last_incident().ask, world.slurm_job().restarts) == ("", 2)
