"""A run that stands still: found after its own limits, requeued, nobody held; and all that only looks like it."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision.policy import Stall
from controller.models import AgentReport, Attempt, Exclusion, Incident, NodeHold
from tests.scenarios.test_causes import kill_rank
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]

QUICK = Stall(floor_s=20.0, settle_s=3.0)
PACE = {"steps": 400, "step_median_s": 0.5, "step_longest_s": 2.0, "step_recent_s": 0.5, "phase_age_s": 60.0}


class Ranks:
    """Two ranks on each of the job's nodes; what the agents say of them is written before every tick."""

    def __init__(self, world: World, **quiet: Any) -> None:
        self.world = world
        self.quiet: dict[str, Any] = {"phase": "training", "step": 100, "pace": PACE} | quiet
        self.since = [world.now] * 4
        self.differs: dict[int, dict[str, Any]] = {}

    def run(self, seconds: float, *, moving: bool = False) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            if moving:
                self.since = [self.world.now + 1.0] * 4
            self._say()
            self.world.tick()

    def _say(self) -> None:
        newest = Attempt.objects.order_by("-generation")[0]
        if newest.generation > 1:
            return
        for index, report in enumerate(AgentReport.objects.filter(attempt=newest).order_by("node")):
            report.ranks = [self._rank(2 * index + local) for local in range(2)]
            report.save(update_fields=["ranks"])

    def _rank(self, number: int) -> dict[str, Any]:
        quiet = {"rank": number, "pid": 400 + number, "state": "running", "exit_code": None, "signal": None}
        age = {"progress_age_s": self.world.now + 1.0 - self.since[number], "beat_age_s": 0.1}
        return quiet | age | self.quiet | self.differs.get(number, {})


@pytest.fixture
def quick(world: World) -> World:
    world.policy = replace(world.policy, stall=QUICK)
    return world


def nothing_happened(world: World) -> None:
    assert Incident.objects.count() == 0 and world.effects() == []
    assert world.job().state == "training"


def test_a_rank_that_stops_is_a_hang_and_the_run_goes_on_elsewhere_or_there(quick: World) -> None:
    quick.start()
    ranks = Ranks(quick)
    ranks.differs[2] = {"step": 99}
    began = quick.now
    ranks.run(15)
    nothing_happened(quick)
    ranks.run(25)
    incident = quick.incident()
    assert (incident.cause, incident.budget, incident.ranks, incident.suspects) == ("hang", "infrastructure", [2], [])
    assert 20 < incident.detected_at.timestamp() - began < 30
    assert "stands at step 99" in incident.reason
    assert quick.effects("drain", "down", "exclude") == []
    assert NodeHold.objects.count() == 0 and Exclusion.objects.count() == 0
    assert (quick.slurm_job().base, quick.slurm_job().restarts) == ("RUNNING", 1)
    assert Attempt.objects.get(generation=1).outcome == "hung"
    codes = set(incident.evidence.values_list("code", "subject"))
    assert ("progress.stalled", "rank 2") in codes
    quick.resume_trains()
    quick.run(4)
    assert quick.incident().state == "resolved" and quick.job().state == "training"


def test_all_ranks_equal_suspects_nobody(quick: World) -> None:
    quick.start()
    Ranks(quick).run(40)
    incident = quick.incident()
    assert (incident.cause, incident.ranks, incident.suspects) == ("hang", [], [])
    assert quick.slurm_job().restarts == 1


def test_a_run_that_moves_is_left_alone(quick: World) -> None:
    quick.start()
    Ranks(quick).run(60, moving=True)
    nothing_happened(quick)


def test_an_evaluation_within_its_learned_limit(quick: World) -> None:
    """The whole job evaluates for minutes, as it did before."""
    quick.start()
    pace = PACE | {"phases": {"evaluation": {"count": 2, "median_s": 90.0, "longest_s": 100.0}}}
    Ranks(quick, phase="evaluation", pace=pace).run(120)
    nothing_happened(quick)


def test_a_first_step_that_compiles_for_ten_minutes(world: World) -> None:
    world.start()
    ranks = Ranks(world, step=0, pace={"steps": 0})
    ranks.since = [world.now - 600.0] * 4
    ranks.run(20)
    nothing_happened(world)


def test_a_suspended_job_and_a_whole_limit_after_it(quick: World) -> None:
    quick.start()
    ranks = Ranks(quick)
    ranks.run(10)
    with quick.slurm.world() as slurm:
        slurm.jobs[quick.job_id].base = "SUSPENDED"
    ranks.run(60)
    nothing_happened(quick)
    with quick.slurm.world() as slurm:
        slurm.jobs[quick.job_id].base = "RUNNING"
    resumed = quick.now
    ranks.run(15)
    nothing_happened(quick)
    ranks.run(25)
    assert quick.incident().cause == "hang"
    assert quick.incident().detected_at.timestamp() - resumed > QUICK.floor_s


def test_an_older_agent_that_tells_no_pace_has_the_generous_limits(quick: World) -> None:
    quick.start()
    Ranks(quick, pace=None).run(60)
    nothing_happened(quick)


def test_a_rank_that_died_is_no_hang(quick: World) -> None:
    quick.start()
    ranks = Ranks(quick)
    ranks.run(5)
    kill_rank(quick)
    ranks.run(40)
    assert set(Incident.objects.values_list("cause", flat=True)) == {"process_died"}


def test_hanging_again_and_again_at_the_same_step_asks(quick: World) -> None:
    """The same-step limit stops the loop: two requeues without progress, then a person."""
    quick.policy = replace(quick.policy, stall=replace(QUICK, step_s=20.0, first_step_s=20.0))
    quick.start()
    Ranks(quick).run(45)
    for _ in range(2):
        hang_again(quick)
    assert Incident.objects.count() == 3
    last = Incident.objects.order_by("-pk")[0]
    assert last.cause == "hang" and "no progress" in last.ask
    assert quick.slurm_job().restarts == 2 and NodeHold.objects.count() == 0


def hang_again(world: World) -> None:
    """The newest attempt resumed, made no new step, and stands still."""
    newest = Attempt.objects.order_by("-generation")[0]
    began = world.now
    for _ in range(45):
        for index, report in enumerate(AgentReport.objects.filter(attempt=newest).order_by("node")):
            age = {"progress_age_s": world.now + 1.0 - began, "beat_age_s": 0.1, "exit_code": None, "signal": None}
            quiet = {"pid": 1, "state": "running", "phase": "training", "step": 90}
            report.ranks = [{"rank": 2 * index + local, **quiet, **age} for local in range(2)]
            report.save(update_fields=["ranks"])
        world.tick()
