"""Requeues with an exclusion on a real Slurm: the nodes that the job keeps, gets, and does not get."""

import os

import pytest

from controller.models import Action, Exclusion
from controller.remediation.executor import run_actions
from tests.cluster.lab_world import WHOLE_NODE, LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]

FULL = os.environ.get("RELUME_FULL") == "1"


# nodes given away while held


@pytest.mark.parametrize("may_reserve", [True, False])
def test_the_survivors_are_kept_where_we_may(world: LabWorld, may_reserve: bool) -> None:
    """Somebody waits for three nodes; our job has two of four, and one of them goes bad. With the reservation it gets
    the other and a spare: from the backfill scheduler, which looks every half minute, the waiting job being first."""
    job = world.running("-N2", WHOLE_NODE)
    kept, bad = world.view().nodes
    if not may_reserve:
        job.cluster.rights = {"capabilities": {"reserve": {"may": "no"}}}
        job.cluster.save()
    world.scontrol("update", f"NodeName={bad}", "State=DRAIN", "Reason=bad")
    waiting = world.submit("-N3", WHOLE_NODE, "-D", "/", user="web")
    action = world.carry_out(world.order(job, bad), 90)
    stranger = world.slurm.read_job(waiting)
    assert stranger is not None and action.state == "done"
    if not may_reserve:
        assert stranger.state.running and world.view().state.pending
        assert "waits" in action.outcome and "running_at" not in action.progress
        assert not Action.objects.filter(kind="give_back").exists()
        return
    assert stranger.state.pending
    world.until(lambda: world.view().state.running, "the job runs", 60)
    assert kept in world.view().nodes and bad not in world.view().nodes
    given = world.carry_out(Action.objects.get(kind="give_back"))
    assert given.state == "done" and world.slurm.read_cluster().reservations == {}
    assert world.view().state.running and world.view().reservation == ""


# A reservation lasts a minute at least: waiting for its end is the campaign's.
if FULL:

    def test_a_job_that_must_wait_keeps_its_survivors_until_it_runs_or_the_minutes_are_over(world: LabWorld) -> None:
        stranger = world.submit("-N1", "--nodelist=gpu4", WHOLE_NODE, "-D", "/", user="web")
        world.until(lambda: world.slurm.read_job(stranger).state.running, "the stranger's job runs")  # type: ignore[union-attr]
        job = world.running("-N3", WHOLE_NODE)
        *kept, bad = world.view().nodes
        world.submit("-N4", WHOLE_NODE, "-D", "/", user="web")
        action = world.carry_out(world.order(job, bad), 90)
        assert "waits" in action.outcome and world.view().state.pending
        (reservation,) = world.slurm.read_cluster().reservations.values()
        assert set(reservation.nodes) == set(kept) and world.view().reservation == reservation.name
        given = Action.objects.get(kind="give_back")
        Action.objects.update(due_at=given.created_at)
        run_actions(world.site)
        given.refresh_from_db()
        assert given.state == "ready" and "waits with" in given.outcome
        world.scontrol("update", f"ReservationName={reservation.name}", "Duration=1")
        world.until(lambda: world.slurm.read_reservation(reservation.name) is None, "the reservation ends", 100)
        world.until(lambda: world.view().reservation == "", "the job is free of it")
        assert world.view().state.pending and not world.view().held, "pinned to nothing, held by nobody"
        assert world.carry_out(given).outcome == f"reservation {reservation.name} is not there any more"


def test_the_users_own_reservation_is_kept(world: LabWorld) -> None:
    owner = world.lab.users["owner"]
    reserve = ("create", "reservation", "ReservationName=course", f"Users={owner}", "Nodes=gpu[1-3]", "StartTime=now")
    world.scontrol(*reserve, "Duration=10", user="controller")
    job = world.running("-N2", WHOLE_NODE, "--reservation=course")
    bad = world.view().nodes[0]
    action = world.carry_out(world.order(job, bad))
    assert action.state == "done" and world.view().state.running and world.view().reservation == "course"
    assert bad not in world.view().nodes and set(world.slurm.read_cluster().reservations) == {"course"}


# too few nodes


def test_too_few_nodes_would_be_left(world: LabWorld) -> None:
    """The fourth node is out for somebody else's reason: excluding one of ours would leave two for three."""
    world.scontrol("update", "NodeName=gpu4", "State=DRAIN", "Reason=fan")
    job = world.running("-N3", WHOLE_NODE, "--constraint=h100&ib")
    bad = world.view().nodes[1]
    Exclusion.objects.all().delete()
    action = world.carry_out(world.order(job, bad))
    assert action.state == "done" and f"{bad} not excluded: too few nodes" in action.outcome
    assert world.view().state.running and world.view().excluded_nodes == ()
    assert not Exclusion.objects.filter(expires_at__gt=action.ended_at).exists()


def test_bad_constraints_that_nobody_could_count_are_taken_back(world: LabWorld) -> None:
    """A features expression that is not read: Slurm says BadConstraints, and the job gets its priority back."""
    job = world.running("-N4", WHOLE_NODE, "--constraint=[h100*4]")
    action = world.carry_out(world.order(job, "gpu3"), 90)
    assert action.state == "done" and "without our exclusion" in action.outcome, action.outcome
    world.until(lambda: world.view().state.running, "the job runs")
    assert world.view().excluded_nodes == () and world.view().restarts == 1


# whose names are on the list


def test_the_users_names_stay_and_ours_expire(world: LabWorld) -> None:
    job = world.running(WHOLE_NODE, "--exclude=gpu4")
    first = world.view().nodes[0]
    world.carry_out(world.order(job, first))
    assert set(world.view().excluded_nodes) == {"gpu4", first}
    Exclusion.objects.update(expires_at=job.created_at)
    second = world.view().nodes[0]
    action = world.carry_out(world.order(job, second))
    assert action.state == "done" and set(world.view().excluded_nodes) == {"gpu4", second}
