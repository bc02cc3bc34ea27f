"""The requeue's handlers where a real Slurm cannot be aimed: lists, refusals, holds, het jobs, spoiled starts."""

from dataclasses import replace
from typing import Any

import pytest

from controller.clock import aware
from controller.errors import RefusalKind
from controller.models import Action, Exclusion
from controller.slurm.views import HoldKind
from tests.controller.ordering import decided, ordered, requeue
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.django_db]


@pytest.fixture
def world(db: None) -> World:
    return World()


# --- whose names are on the list


@pytest.mark.parametrize(("expired", "left"), [(True, ["gpu3", "gpu5"]), (False, ["gpu2", "gpu3", "gpu5"])])
def test_an_exclusion_of_ours_expires_and_the_users_never(world: World, expired: bool, left: list[str]) -> None:
    world.slurm.add_nodes("gpu5", "gpu6", "gpu7")
    world.start(excluded=["gpu5"])
    ordered(world, "gpu2")
    world.run(12)
    assert world.slurm_job().excluded == ["gpu2", "gpu5"]
    if expired:
        Exclusion.objects.update(expires_at=aware(world.now))
    ordered(world, "gpu3")
    world.run(12)
    assert world.slurm_job().restarts == 2 and world.slurm_job().excluded == left


def test_what_the_user_excludes_later_is_the_users_too(world: World) -> None:
    world.slurm.add_nodes("gpu5", "gpu6", "gpu7")
    world.start()
    ordered(world, "gpu2")
    world.run(12)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].excluded = ["gpu2", "gpu7"]
    Exclusion.objects.update(expires_at=aware(world.now))
    ordered(world, "gpu3")
    world.run(12)
    assert world.slurm_job().excluded == ["gpu3", "gpu7"]


def test_as_many_as_can_be_spared_are_excluded(world: World) -> None:
    incident = decided(world)
    action = requeue(world)
    action.params = {**action.params, "exclude": ["gpu2", "gpu3", "gpu4"]}
    action.save()
    world.run(20)
    assert world.slurm_job().excluded == ["gpu2", "gpu3"]
    assert "gpu4 not excluded: too few nodes" in requeue(world).outcome
    assert incident.exclusions.get().node.name == "gpu2"


# --- what is forbidden


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        ({"requeue": False}, {}, "--no-requeue"),
        ({"requeue": False}, {"JobRequeue": "0"}, "JobRequeue=0"),
        ({"batch": False}, {}, "salloc or srun"),
        ({"required": ["gpu2"]}, {}, "requires gpu2 by name"),
    ],
)
def test_what_is_forbidden_is_refused_before_anything_is_written(
    world: World, change: dict[str, Any], config: dict[str, str], said: str
) -> None:
    """The decision has seen this already; here it was changed in between."""
    decided(world, living=True)
    with world.slurm.world() as slurm:
        slurm.config.update(config)
        for name, value in change.items():
            setattr(slurm.jobs[world.job_id], name, value)
    world.run(10)
    assert requeue(world).state == "refused" and said in requeue(world).outcome
    assert world.effects("requeuehold", "requeue", "hold", "exclude", "reserve") == []
    assert world.incident().state == "awaiting_operator" and world.slurm_job().base == "RUNNING"


@pytest.mark.parametrize(
    ("kind", "state", "outcome"),
    [
        (RefusalKind.ALREADY_PENDING, "done", "runs again"),
        (RefusalKind.BUSY, "done", "runs again"),
        (RefusalKind.NOT_REQUEUEABLE, "refused", "nothing was written"),
        (RefusalKind.INVALID_JOB, "done", "runs again"),
        (RefusalKind.NOT_PERMITTED, "refused", "Slurm refused"),
    ],
)
def test_slurms_answers_to_a_requeue(world: World, kind: RefusalKind, state: str, outcome: str) -> None:
    """The job is looked at again after each answer: a refusal that was only a moment's costs nothing."""
    decided(world, living=True)
    world.slurm.fail_next("refused", call="requeue_job", refusal_kind=kind)
    world.run(25)
    assert requeue(world).state == state and outcome in requeue(world).outcome
    assert len(world.slurm.effects("requeuehold")) == (1 if state == "done" else 0)


# --- whose hold it is


@pytest.mark.parametrize(("reason", "words"), [("JobHeldUser", "its owner"), ("JobHeldAdmin", "an operator")])
def test_a_hold_that_was_there_before_the_kill_is_not_hidden_and_not_released(
    world: World, reason: str, words: str
) -> None:
    decided(world, living=True)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].held = reason
    world.run(15)
    assert world.effects("requeue", "requeuehold", "hold", "release") == [f"requeue {world.job_id}"]
    assert (world.slurm_job().held, world.slurm_job().excluded) == (reason, ["gpu2"])
    assert requeue(world).state == "refused" and f"held by {words}" in requeue(world).outcome


def test_a_hold_that_comes_after_the_release_is_left(world: World) -> None:
    decided(world)
    world.auto_resume = False
    with world.slurm.world() as slurm:
        slurm.nodes["gpu3"].drain = slurm.nodes["gpu4"].drain = True

    def hold_it(seconds: float) -> None:
        world.now += seconds
        if "released_at" in requeue(world).progress and world.slurm_job().held == "":
            world.slurm.hold_job(world.job_id)

    world.advance = hold_it  # type: ignore[method-assign]
    world.run(15)
    assert requeue(world).state == "done" and "held by an operator" in requeue(world).outcome
    assert world.slurm_job().held == "JobHeldAdmin"


def test_a_priority_lost_to_our_exclusion_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.remediation.handlers.requeue.exclusions.capacity", lambda *_, **__: None)
    decided(world)
    with world.slurm.world() as slurm:
        del slurm.nodes["gpu3"], slurm.nodes["gpu4"]
    held: list[str] = []

    def hold_after_roll_back(seconds: float) -> None:
        world.now += seconds
        if requeue(world).progress.get("rolled_back") and not held:
            held.append("JobHeldAdmin")
            with world.slurm.world() as slurm:
                slurm.jobs[world.job_id].held = "JobHeldAdmin"

    world.advance = hold_after_roll_back  # type: ignore[method-assign]
    world.run(20)
    assert held and world.slurm_job().held == "" and world.slurm_job().excluded == []


# --- arrays and het jobs


def test_a_het_job_is_requeued_whole_and_excludes_in_every_component(world: World) -> None:
    made: list[str] = []

    def het(**job: Any) -> str:
        made.extend(world.slurm.submit_het([{}, {}], **{**job, "num_nodes": 1}))
        return made[0]

    world.slurm.submit = het  # type: ignore[method-assign]
    world.start()
    ordered(world, "gpu2")
    world.run(15)
    with world.slurm.world() as slurm:
        parts = [slurm.jobs[job_id] for job_id in made]
    assert [(part.base, part.restarts, part.held, part.excluded) for part in parts] == [
        ("RUNNING", 1, "", ["gpu2"]),
        ("RUNNING", 1, "", ["gpu2"]),
    ]
    assert "gpu2" not in [node for part in parts for node in part.nodes]
    assert requeue(world).state == "done" and world.effects("release") == [f"release {made[0]}", f"release {made[1]}"]


def test_a_het_job_of_which_a_part_is_not_shown_is_left_alone(world: World) -> None:
    decided(world, living=True)

    class Cut:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.slurm, name)

        def read_job(self, job_id: str) -> Any:
            job = world.slurm.read_job(job_id)
            return replace(job, het_job_id=1, het_job_offset=0) if job is not None else None

        def read_array(self, job_id: str) -> Any:
            return [self.read_job(job_id)]

    world.port = Cut()  # type: ignore[assignment]
    world.run(10)
    assert world.effects("requeuehold", "exclude") == [] and "every component" in requeue(world).outcome


# --- a start that fails as it begins


def test_a_credential_revoked_by_our_own_kill_is_repeated_once(world: World) -> None:
    """The in-memory Slurm fails every start within 4 s of the kill, as a real one does by chance."""
    world.slurm._options = replace(world.slurm._options, too_quick_start=4.0)
    world.auto_resume = False
    decided(world, living=True)
    seen: list[float] = []

    def slower_clock(seconds: float) -> None:
        world.now += seconds
        if requeue(world).progress.get("relaunched") and not seen:
            seen.append(world.now)
            world.slurm._options = replace(world.slurm._options, too_quick_start=1.0)

    world.advance = slower_clock  # type: ignore[method-assign]
    world.run(25)
    assert seen and requeue(world).state == "done" and "runs again" in requeue(world).outcome
    assert world.slurm_job().restarts == 2 and world.slurm_job().excluded == ["gpu2"]


def test_a_launch_that_slurm_gives_up_is_decided_anew(world: World) -> None:
    decided(world)
    world.auto_resume = False

    def give_up(seconds: float) -> None:
        world.now += seconds
        job = world.slurm_job()
        if job.base == "RUNNING" and job.restarts == 1:
            with world.slurm.world() as slurm:
                hit = slurm.jobs[world.job_id]
                hit.base, hit.nodes, hit.held, hit.restarts = "PENDING", [], "launch_failed_requeued_held", 2

    world.advance = give_up  # type: ignore[method-assign]
    world.run(10)
    first = Action.objects.filter(kind="requeue_excluding").earliest("pk")
    assert first.state == "done" and "could not launch it" in first.outcome
    assert world.slurm.read_job(world.job_id).hold_kind is HoldKind.LAUNCH_FAILED  # type: ignore[union-attr]


# --- processes that do not go


def test_what_a_long_completing_waits_for_is_said_with_slurms_own_limits(world: World) -> None:
    world.slurm._options = replace(world.slurm._options, completing=40.0)
    decided(world, living=True)
    with world.slurm.world() as slurm:
        slurm.config.update({"KillWait": "30 sec", "UnkillableStepTimeout": "60 sec"})
    world.run(20)
    action = requeue(world)
    assert action.state == "ready" and "processes on gpu1, gpu2 have not ended" in action.outcome
    assert "(KillWait 30 sec, UnkillableStepTimeout 60 sec)" in action.outcome
    world.run(40)
    assert world.slurm_job().base == "RUNNING" and requeue(world).state == "done"
    stamps = world.incident().recoveries.get().stamps
    assert stamps["torn_down"]["at"] - stamps["killed"]["at"] >= 39
