"""A node dies under a training job: held, excluded, requeued, resumed, verified."""

from typing import Any

import pytest
from django.db import DataError

from controller.ledger import commit as ledger
from controller.models import Action, Exclusion, Incident, NodeHold, Recovery
from controller.queries.phases import TENTHS, phases_of
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def test_the_whole_story(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    killed_at = world.now
    world.run(8)

    incident = world.incident()
    assert (incident.cause, incident.suspects, incident.budget) == ("node_lost", ["gpu2"], "infrastructure")
    assert [e.number for e in incident.evidence.all()] == list(range(1, incident.evidence.count() + 1))
    assert incident.detected_at.timestamp() - killed_at < 7
    assert world.effects("drain", "down") == ["drain gpu2", "down gpu2"]
    jobs = [effect.split()[0] for effect in world.effects() if effect.endswith(f" {world.job_id}")]
    assert jobs == ["hold", "exclude", "start_now", "release"]
    assert [effect.split()[0] for effect in world.effects("reserve", "unreserve")] == ["reserve", "unreserve"]
    hold = NodeHold.objects.get()
    assert world.slurm.read_node("gpu2").reason.startswith(f"relume:{hold.token} incident {incident.pk}")
    assert (hold.slurm_reason_user, hold.adopted) == ("slurm", False)
    assert Exclusion.objects.get().node.name == "gpu2"
    view = world.slurm.read_job(world.job_id)
    assert view.state.running and view.restarts == 1 and "gpu2" not in view.nodes
    assert view.excluded_nodes == ("gpu2",)

    world.run(2)
    assert (world.incident().state, world.job().state) == ("recovering", "recovering")
    world.resume_trains()
    world.run(2)
    assert (world.incident().state, world.job().state) == ("resolved", "training")
    world.run(3)

    recovery = Recovery.objects.get()
    assert recovery.verification == "PASS" and recovery.rpo_steps == 10
    clock = phases_of(recovery.stamps)
    assert clock.total is not None and sum(phase.seconds for phase in clock.phases) == pytest.approx(
        clock.total / TENTHS
    )
    names = [phase.name for phase in clock.phases]
    assert names[:3] == ["detected", "diagnosed", "held"] and names[-1] == "first_new_step"
    assert {"killed", "torn_down", "requeued", "released", "allocated", "launched"} <= set(names)
    assert Incident.objects.count() == 1 and NodeHold.objects.get().state == "drained"
    assert Action.objects.exclude(state="done").count() == 0


def test_a_decision_that_cannot_be_written_stops_no_sweep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job's odd values (a text that fits no column) must not hold up the recovery of all the others."""
    broken = True

    def commit(*args: Any) -> Any:
        if broken:
            raise DataError("value too long for type character varying(255)")
        return ledger.commit(*args)

    world.start()
    monkeypatch.setattr("controller.sweep.commit", commit)
    world.kill_host("gpu2")
    world.run(8)
    assert not Incident.objects.exists()
    broken = False
    world.run(8)
    assert world.incident().cause == "node_lost"
