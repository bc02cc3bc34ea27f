"""A job that slurmctld does not know: what accounting says, and what a restart of slurmctld may have done."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from controller.models import Submission
from controller.remediation.handlers.requeue import gone
from controller.slurm.fake import FakeSlurm
from tests.controller.ordering import act, decided, requeue
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.django_db]


@pytest.fixture
def world(db: None) -> World:
    return World()


def forgotten(world: World, history: Callable[[FakeSlurm], None] = lambda _: None) -> str:
    """What is said when slurmctld does not know the job any more."""
    decided(world, living=True)
    history(world.slurm)
    world.slurm.forget(world.job_id)
    act(world, 5)
    action = requeue(world)
    assert action.state == "refused" and world.effects("requeuehold", "hold") == []
    return action.outcome


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("COMPLETED", "accounting says COMPLETED at 20"),
        ("CANCELLED", "nothing is requeued"),
        ("FAILED", "(exit code 1:0); it can only be submitted anew"),
    ],
)
def test_accounting_says_how_it_ended(world: World, base: str, said: str) -> None:
    def ended(slurm: FakeSlurm) -> None:
        slurm.end_job(world.job_id, base, exit_code=1 if base == "FAILED" else 0)

    assert said in forgotten(world, ended)


def test_accounting_that_knows_nothing_or_is_not_there(world: World) -> None:
    assert "accounting has no record of it" in forgotten(world)


def test_no_accounting(world: World) -> None:
    world.slurm._options = replace(world.slurm._options, accounting=False)
    assert "no accounting" in forgotten(world)


def test_an_older_job_of_the_same_number_is_not_this_one(world: World) -> None:
    decided(world, living=True)
    job = world.job()
    Submission.objects.create(training_job=job, slurm_job_id=world.job_id, submitted_at=job.created_at)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].submit_time = (job.created_at - timedelta(days=400)).timestamp()
    world.slurm.end_job(world.job_id, "COMPLETED")
    world.slurm.forget(world.job_id)
    act(world, 5)
    assert "accounting has no record of it" in requeue(world).outcome


def test_a_restarted_slurmctld_is_given_time_to_remember(world: World) -> None:
    decided(world, living=True)
    with world.slurm.world() as slurm:
        slurm.boot_time = world.now
        job = slurm.jobs.pop(world.job_id)
    act(world, 10)
    assert requeue(world).state == "ready" and "was restarted at" in requeue(world).outcome
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id] = job
    world.run(15)
    assert requeue(world).state == "done" and world.slurm_job().restarts == 1


def test_a_restarted_slurmctld_that_does_not_remember(world: World) -> None:
    decided(world, living=True)
    with world.slurm.world() as slurm:
        slurm.boot_time = world.now
        slurm.jobs.pop(world.job_id)
        slurm.history.clear()
    act(world, gone.RESTARTED_LOOK_S + 10)
    assert requeue(world).state == "refused" and "may have forgotten it" in requeue(world).outcome
