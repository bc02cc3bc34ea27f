"""What a run's own numbers say, end to end: those that stay none ask, a second sign names a node, a spike is let be."""

from dataclasses import replace
from typing import Any

import pytest

from controller import commands
from controller.clock import aware
from controller.decision.loss_faults import AGAIN_S
from controller.decision.policy import Stall
from controller.ingest.changes import Changes
from controller.ingest.losses import merged
from controller.models import AgentReport, Attempt, Exclusion, Incident, NodeHold
from controller.replay import replay
from dashboard.presenters import evidence as presenter
from tests.scenarios.conftest import ECC, die
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]
NAN = float("nan")
XID_48 = {"code": "xid.48", "raw": "NVRM: Xid (PCI:0000:9b:00): 48, DBE", "attrs": {"number": 48}}
XID_94 = {"code": "xid.94", "raw": "NVRM: Xid (PCI:0000:9b:00): 94, Contained", "attrs": {"number": 94}}


def train(world: World, *values: float) -> None:
    """Rank 0's next losses, as ingest keeps them, and a second later the controller looks."""
    row = Attempt.objects.order_by("-generation")[0]
    last = row.losses["state"]["last_step"] if row.losses else 0
    points = list(enumerate(values, start=last + 1))
    bad = [(0, "loss", step) for step, value in points if value != value]
    row.losses = merged(row.losses, Changes(losses=points, not_finite=bad[:1]))
    row.save(update_fields=["losses"])
    world.run(1)


def lost_its_loss(world: World) -> Incident:
    world.start()
    train(world, *[2.0] * 30)
    train(world, *[NAN] * 25)
    world.run(5)
    return world.incident()


def goes_on(world: World) -> bool:
    """Nothing was written to Slurm, and the run is what it was."""
    attempt = Attempt.objects.order_by("-generation")[0]
    told = (attempt.state, world.job().state, world.slurm_job().base, world.slurm_job().restarts)
    return world.effects() == [] and told == ("running", "training", "RUNNING", 0)


# --- no numbers -----------------------------------------------------------------------------------------------------


def test_it_asks_once_and_the_run_goes_on(world: World) -> None:
    incident = lost_its_loss(world)
    assert (incident.cause, incident.state, incident.budget) == ("not_finite", "awaiting_operator", "none")
    assert (incident.suspects, incident.assessment["verdict"]) == ([], "unknown")
    assert "goes on" in incident.ask and "since step 31" in incident.reason
    assert list(incident.actions.values_list("kind", flat=True)) == ["notify"]
    train(world, *[NAN] * 200)
    world.run(30)
    assert Incident.objects.count() == 1 and goes_on(world)
    assert NodeHold.objects.count() == Exclusion.objects.count() == 0


def test_it_is_resolved_when_numbers_return_and_asks_anew_an_hour_later_when_they_go_again(world: World) -> None:
    incident = lost_its_loss(world)
    train(world, 2.0)
    incident.refresh_from_db()
    assert incident.state == "resolved" and goes_on(world)
    train(world, *[NAN] * 25)
    assert Incident.objects.count() == 1, "a loss that comes and goes does not ask at each turn"
    Incident.objects.update(ended_at=aware(world.now - AGAIN_S))
    world.run(2)
    assert Incident.objects.count() == 2 and goes_on(world)


def test_what_a_person_has_closed_is_not_asked_again(world: World) -> None:
    incident = lost_its_loss(world)
    commands.dismiss(incident, who="ada", reason="I know", now=world.now)
    train(world, *[NAN] * 50)
    world.run(10)
    assert Incident.objects.count() == 1 and goes_on(world)


def test_fewer_than_the_policy_asks_for(world: World) -> None:
    world.start()
    train(world, *[2.0] * 30, *[NAN] * 19)
    world.run(10)
    assert Incident.objects.count() == 0 and goes_on(world)


def test_a_spike_that_heals_is_nothing_and_nothing_is_gone_back_for(world: World) -> None:
    world.start()
    train(world, *[2.0] * 30, 9.0, 6.0)
    world.run(5)
    train(world, *[2.0] * 10)
    world.run(5)
    assert Attempt.objects.get().losses["state"]["spikes"][0]["healed_step"] is not None
    assert Incident.objects.count() == 0 and goes_on(world)


def test_in_observe_mode_it_is_one_record(world: World) -> None:
    world.set_policy(mode="observe")
    incident = lost_its_loss(world)
    world.run(10)
    assert (incident.state, Incident.objects.count()) == ("observed_only", 1) and goes_on(world)


def test_the_page_shows_it_in_its_lane_and_today_it_is_decided_alike(world: World) -> None:
    incident = lost_its_loss(world)
    told = incident.evidence.get(code="loss.not_finite")
    assert (told.layer, told.stance, told.rank, told.source, told.count) == ("process", "accuses", 0, "progress", 25)
    assert incident.fault_at is not None
    shown = presenter.evidence_view(incident, list(incident.evidence.all()), incident.fault_at)
    assert shown.lanes_json is not None and shown.proof[0].burst
    assert [(mark["layer"], mark["stance"]) for mark in shown.lanes_json["signs"]] == [("process", "accuses")]
    said = replay(incident.pk, world.policy)
    assert said.differences == [] and any("loss.not_finite" in line for line in said.now["proof"])


# --- a second sign --------------------------------------------------------------------------------------------------


def held() -> list[str]:
    return sorted(NodeHold.objects.values_list("node__name", flat=True))


@pytest.mark.parametrize("before", [True, False], ids=["sign first", "loss first"])
def test_with_an_uncontained_memory_error_it_is_that_node(world: World, before: bool) -> None:
    world.start()
    if before:
        world.sense("gpu2", XID_48)
    train(world, *[2.0] * 30, *[NAN] * 25)
    if not before:
        world.run(5)
        world.sense("gpu2", XID_48)
    world.run(14)
    last = Incident.objects.order_by("-pk")[0]
    assert (last.suspects, held(), last.budget) == (["gpu2"], ["gpu2"], "infrastructure")
    assert world.slurm_job().excluded == ["gpu2"] and world.slurm_job().restarts == 1
    assert set(Incident.objects.filter(cause="not_finite").values_list("state", flat=True)) <= {"abandoned"}


def test_with_a_contained_one_the_job_leaves_the_node_which_is_not_held(world: World) -> None:
    """By itself it would end nothing: the run trained on."""
    world.start()
    world.sense("gpu2", XID_94)
    world.run(10)
    assert Incident.objects.count() == 0
    train(world, *[2.0] * 30, *[NAN] * 25)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.suspects, held()) == ("gpu_hardware", ["gpu2"], [])
    assert world.slurm_job().excluded == ["gpu2"] and world.slurm_job().restarts == 1
    assert {"loss.not_finite", "xid.94"} <= set(incident.evidence.values_list("code", flat=True))


def test_by_the_jobs_own_word_the_node_is_left_and_not_held(world: World) -> None:
    incident = lost_its_loss(world)
    world.job_sign("gpu2", "cuda.ecc", 2, raw=ECC, attrs={"text": ECC})
    world.run(14)
    incident.refresh_from_db()
    last = Incident.objects.order_by("-pk")[0]
    assert (incident.state, last.cause, last.assessment["withheld"]) == ("abandoned", "gpu_hardware", ["gpu2"])
    assert held() == [] and world.slurm_job().excluded == ["gpu2"] and world.slurm_job().restarts == 1


# --- other faults meanwhile -----------------------------------------------------------------------------------------


def test_a_node_that_is_lost_meanwhile_is_recovered_from_as_ever(world: World) -> None:
    asked = lost_its_loss(world)
    world.kill_host("gpu2")
    world.run(14)
    asked.refresh_from_db()
    lost = Incident.objects.get(cause="node_lost")
    assert asked.state == "abandoned" and (lost.suspects, held()) == (["gpu2"], ["gpu2"])
    assert world.slurm_job().restarts == 1 and Attempt.objects.get(generation=1).outcome == "node_lost"
    world.resume_trains()
    world.run(4)
    lost.refresh_from_db()
    assert lost.state == "resolved" and world.job().state == "training" and Incident.objects.count() == 2


def test_a_process_that_dies_meanwhile_is_requeued_as_ever(world: World) -> None:
    asked = lost_its_loss(world)
    die(world, (2, "gpu2"), signal=9)
    world.run(14)
    asked.refresh_from_db()
    assert (asked.state, Incident.objects.get(cause="process_died").suspects) == ("abandoned", [])
    assert world.slurm_job().restarts == 1 and held() == []


def test_a_user_who_cancels_closes_it(world: World) -> None:
    asked = lost_its_loss(world)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].base = "CANCELLED"
    world.run(4)
    asked.refresh_from_db()
    assert (asked.state, world.job().state, Attempt.objects.get().outcome) == ("resolved", "cancelled", "cancelled")


# --- pace -----------------------------------------------------------------------------------------------------------


def crawl(world: World) -> None:
    """Every rank's steps take sixty times as long as they did."""
    pace = {"steps": 400, "step_median_s": 0.6, "step_longest_s": 40.0, "step_recent_s": 37.0, "phase_age_s": 900.0}
    quiet: dict[str, Any] = {"pid": 1, "state": "running", "exit_code": None, "signal": None, "phase": "training"}
    quiet |= {"step": 100, "progress_age_s": 1.0, "beat_age_s": 0.1, "pace": pace}
    for index, report in enumerate(AgentReport.objects.order_by("node")):
        report.ranks = [{**quiet, "rank": 2 * index + local} for local in range(2)]
        report.save(update_fields=["ranks"])


def test_a_pace_that_collapsed_before_a_connection_closed_is_shown_and_blames_nobody(world: World) -> None:
    """Case A51."""
    world.start()
    crawl(world)
    world.run(5)
    assert Incident.objects.count() == 0
    raw = "Read error [10.77.0.2]:25266: Connection reset by peer"
    world.job_sign("gpu1", "gloo.peer_lost", 0, layer="library", raw=raw, attrs={"peer": "10.77.0.2", "kind": "closed"})
    die(world, (0, "gpu1"), signal=6)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.budget) == ("process_died", "process")
    assert (incident.assessment["verdict"], incident.assessment["confidence"]) == ("unknown", "low")
    assert "62 times" in incident.assessment["why"]
    slow = incident.evidence.get(code="progress.slow")
    assert (slow.layer, slow.stance) == ("progress", "accuses")
    assert world.effects("drain", "down", "exclude") == [] and world.slurm_job().restarts == 1


def test_a_slow_run_alone_is_nothing(world: World) -> None:
    world.policy = replace(world.policy, stall=Stall(slow_factor=2.0))
    world.start()
    crawl(world)
    world.run(20)
    assert Incident.objects.count() == 0 and goes_on(world)
