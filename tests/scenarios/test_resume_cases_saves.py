"""Resume case R24 and relatives: saves that fail while the run goes on. A person is asked at once, nothing is requeued,
and a save that is committed closes the question."""

from typing import Any

import pytest

from controller import commands
from controller.clock import aware
from controller.decision.save_faults import AGAIN_S
from controller.ingest.changes import Changes
from controller.ingest.saves import merged, note_checkpoint
from controller.models import Action, Attempt, Incident
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]
QUOTA = "saving step 200: [Errno 122] Disk quota exceeded: '/scratch/rank-00001.d/tensors.bin'"


def saves(world: World, *states: str, reason: str = QUOTA, tier: str = "shared") -> None:
    """What rank 0 tells of its next saves, as ingest keeps it, and the controller looks."""
    row, changes = Attempt.objects.order_by("-generation")[0], Changes()
    for state in states:
        body: dict[str, Any] = {"state": state, "reason": reason if state == "failed" else None, "tier": tier}
        note_checkpoint(changes, body, aware(world.now))
    row.saving = merged(row.saving, changes)
    row.save(update_fields=["saving"])
    world.run(3)


def goes_on(world: World) -> bool:
    return (world.effects(), world.job().state, world.slurm_job().restarts) == ([], "training", 0)


@pytest.mark.parametrize("states", [("failed",), ("committed", "failed", "failed"), ("failed", "failed", "failed")])
def test_a_person_is_asked_once_and_the_run_goes_on(world: World, states: tuple[str, ...]) -> None:
    """R24: the alarm, with the system's own words."""
    world.start()
    saves(world, *states)
    world.run(10)
    incident = world.incident()
    assert (incident.cause, incident.state, incident.suspects) == ("saves_fail", "awaiting_operator", [])
    assert QUOTA in incident.reason and "goes on" in incident.ask
    assert [action.kind for action in Action.objects.all()] == ["notify"] and goes_on(world)


@pytest.mark.parametrize("told", [("committed",), ("failed", "committed"), ("committed", "failed", "committed")])
def test_a_save_that_is_committed_is_no_question(world: World, told: tuple[str, ...]) -> None:
    world.start()
    saves(world, *told)
    saves(world, "failed", tier="local")
    assert Incident.objects.count() == 0 and goes_on(world)


def test_the_next_committed_save_closes_it_and_a_later_row_is_asked_about_again(world: World) -> None:
    world.start()
    saves(world, "failed")
    saves(world, "failed", "committed")
    assert world.incident().state == "resolved" and goes_on(world)
    saves(world, "failed")
    assert Incident.objects.count() == 1, "not at each turn"
    world.advance(AGAIN_S)
    world.run(3)
    assert [incident.state for incident in Incident.objects.order_by("pk")] == ["resolved", "awaiting_operator"]


def test_what_a_person_has_answered_is_not_asked_again(world: World) -> None:
    world.start()
    saves(world, "failed")
    commands.dismiss(world.incident(), who="ada", reason="I know", now=world.now)
    saves(world, "failed", "failed")
    world.advance(2 * AGAIN_S)
    world.run(3)
    assert Incident.objects.count() == 1 and goes_on(world)


def test_a_fault_beside_it_is_handled_as_ever(world: World) -> None:
    world.start()
    saves(world, "failed")
    world.kill_host("gpu2")
    world.run(30)
    asked, lost = Incident.objects.order_by("pk")
    assert (asked.cause, asked.state, lost.cause) == ("saves_fail", "abandoned", "node_lost")
    assert world.slurm_job().restarts == 1


@pytest.mark.parametrize("base", ["COMPLETED", "CANCELLED"])
def test_it_ends_with_the_run(world: World, base: str) -> None:
    world.start()
    saves(world, "failed")
    world.slurm.end_job(world.job_id, base)
    world.run(20)
    assert world.incident().state == "resolved" and world.job().state in ("finished", "cancelled")
