"""Resume case R02 and relatives: Slurm calls a job COMPLETED 0:0 whose steps are not made. It is never shown as
finished, nothing is requeued, a person is asked, and whatever settles the question later settles it."""

from typing import Any

import pytest

from controller import commands
from controller.api.job_json import job_json
from controller.clock import aware
from controller.models import Action, Attempt, Incident, TrainingJob
from dashboard import words
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def ended(
    world: World, *, total: int | None = 160, silent: bool = False, seconds: float | None = None, **columns: Any
) -> None:
    """The run is at step 80, has said how many steps it takes, and Slurm ends it with 0:0."""
    world.start()
    TrainingJob.objects.update(total_steps=total)
    quiet: dict[str, Any] = {"step": 80, "finished_at": aware(world.now)}
    if silent:
        quiet["finished_at"] = None
        world.silent_agents.update({"gpu1", "gpu2"})
    Attempt.objects.update(**(quiet | columns))
    world.slurm.end_job(world.job_id, "COMPLETED")
    world.run(seconds or (18 if silent else 4))


RESTORED = {"start_step": 80, "start_folder": "step-00000080.g1", "first_step_at": None, "first_new_step_at": None}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (RESTORED, "80 of 160 steps; no step after the restore of step 80"),
        ({"start_step": 40}, "80 of 160 steps"),
        ({"start_step": 0}, "80 of 160 steps"),
        ({"step": 159, "start_step": 158}, "159 of 160 steps"),
        ({**RESTORED, "total": None}, "no step after the restore of step 80, and the run did not say how many"),
        ({"silent": True}, "did not tell how it ended, so what it did after step 80 is unknown"),
        ({"silent": True, **RESTORED}, "did not tell how it ended"),
        ({"step": None, "start_step": None, "silent": True}, "0 of 160 steps"),
    ],
)
def test_a_success_without_its_steps_is_no_end(world: World, columns: dict[str, Any], said: str) -> None:
    """R02: 80 of 160, at the first step of an epoch or at the last of all, total told or not, agents heard or not."""
    ended(world, **columns)
    job, incident = world.job(), world.incident()
    assert (incident.cause, incident.state) == ("incomplete", "awaiting_operator")
    assert said in incident.reason and "nothing was requeued" in incident.ask
    assert words.of_job(job.state, incident.cause).text == "Incomplete, needs you"
    told = job_json(job, aware(world.now))
    assert told["state"] == "stopped" and said in told["incident"]["reason"]
    assert told["attempts"][0]["outcome"] == "incomplete"
    world.run(5)
    assert world.job().state == "stopped" and Incident.objects.count() == 1
    assert world.effects() == [] and world.slurm_job().restarts == 0


@pytest.mark.parametrize(
    "columns",
    [
        {"step": 160},
        {"step": 161},
        {**RESTORED, "total": 80},
        {**RESTORED, "total": 70},
        {"total": None},
        {"step": 160, "silent": True},
        {"early": "no better for 5 epochs"},
    ],
    ids=["done", "one more", "resumed at the end", "total lowered", "not told", "silent and done", "the script's word"],
)
def test_a_run_that_is_done_is_finished(world: World, columns: dict[str, Any]) -> None:
    """R09: also one that resumed at its total, or beyond one that was lowered, and made no step. A script may say that
    it ends early."""
    ended(world, **columns)
    job = world.job()
    assert job.state == "finished" and columns.get("early", "") in job.state_reason
    assert Incident.objects.count() == 0 and Action.objects.count() == 0 and world.effects() == []


@pytest.mark.parametrize(("base", "state"), [("CANCELLED", "cancelled"), ("COMPLETED", "stopped")])
def test_a_run_that_its_user_ended_is_cancelled_and_no_question(world: World, base: str, state: str) -> None:
    world.start()
    TrainingJob.objects.update(total_steps=160)
    world.slurm.end_job(world.job_id, base)
    world.run(18)
    assert (world.job().state, world.effects()) == (state, [])
    assert Incident.objects.filter(cause="incomplete").exists() == (state == "stopped")


def test_last_words_that_are_on_their_way_are_waited_for(world: World) -> None:
    """Neither finished nor asked about before they came; the job is finished when they did."""
    ended(world, silent=True, seconds=5)
    assert world.job().state == "training" and Incident.objects.count() == 0
    Attempt.objects.update(step=160, finished_at=aware(world.now))
    world.run(3)
    assert world.job().state == "finished" and Incident.objects.count() == 0


def test_words_that_come_too_late_close_the_question(world: World) -> None:
    ended(world, silent=True)
    assert world.incident().state == "awaiting_operator"
    Attempt.objects.update(step=160, finished_at=aware(world.now))
    world.run(3)
    assert (world.job().state, world.incident().state) == ("finished", "resolved")


def test_a_persons_word_makes_it_complete(world: World) -> None:
    ended(world, **RESTORED)
    commands.dismiss(world.incident(), who="ada", reason="early stopping, as planned", now=world.now)
    world.run(3)
    assert (world.job().state, Incident.objects.count()) == ("finished", 1)


def test_what_a_later_start_leaves_undone_is_asked_about_again(world: World) -> None:
    """A person requeues it by hand. The word about the first end is none about the second."""
    ended(world, **RESTORED)
    world.resume_step = 80
    world.slurm.requeue_job(world.job_id, hold=False)
    world.run(3)
    world.advance(150)  # Slurm lets a requeued job wait for two minutes
    world.run(3)
    newest = Attempt.objects.order_by("-generation")[0]
    assert newest.generation == 2
    world.slurm.end_job(world.job_id, "COMPLETED")
    world.run(18)
    first, second = Incident.objects.order_by("pk")
    assert (first.cause, first.state) == ("incomplete", "abandoned")
    assert (second.cause, second.state) == ("incomplete", "awaiting_operator")
    assert world.job().state == "stopped"


def test_a_recovery_whose_resumed_run_makes_no_step_is_requeued_once_in_all(world: World) -> None:
    """The node is lost, the job requeued; the resumed run ends with 0:0 at the step that it was restored from."""
    world.start()
    TrainingJob.objects.update(total_steps=160)
    world.resume_step = 80
    world.kill_host("gpu2")
    world.run(30)
    assert world.slurm_job().restarts == 1 and world.job().state == "recovering"
    Attempt.objects.filter(generation=2).update(finished_at=aware(world.now), start_folder="step-00000080.g1")
    world.slurm.end_job(world.job_id, "COMPLETED")
    world.run(30)
    lost, short = Incident.objects.order_by("pk")
    assert (lost.cause, lost.state) == ("node_lost", "abandoned")
    assert short.state == "awaiting_operator" and "no step after the restore of step 80" in short.reason
    assert world.slurm_job().restarts == 1 and world.job().state == "stopped"


def test_a_recovery_whose_resumed_run_never_spoke_is_asked_about(world: World) -> None:
    world.auto_resume = False
    world.start()
    TrainingJob.objects.update(total_steps=160)
    world.kill_host("gpu2")
    world.run(30)
    world.slurm.end_job(world.job_id, "COMPLETED")
    world.run(30)
    assert world.incident().state == "awaiting_operator" and "before it spoke" in world.incident().ask
    assert world.slurm_job().restarts == 1 and world.job().state == "stopped"


def test_in_observe_mode_it_is_not_called_finished_either(world: World) -> None:
    world.policy = type(world.policy)(mode="observe", knowledge=world.policy.knowledge)
    ended(world, **RESTORED)
    world.run(30)
    assert world.incident().state == "observed_only" and world.job().state != "finished"
