"""The pace that an agent learns by looking at slots."""

from dataclasses import replace

import pytest

from worker_hooks.agent.pace import FORGET_AT, LATE_LOOK_S, PaceBook, RankPace, Sketch
from worker_hooks.protocol.pace import Pace, PhasePace
from worker_hooks.protocol.slots import Slot

pytestmark = pytest.mark.pure
S = 1_000_000_000


class Rank:
    """A rank on a clock of its own, looked at once a second."""

    def __init__(self, phase: str = "starting", start_step: int = 0) -> None:
        self.now = 1_000 * S
        self.slot = Slot(42, phase, 0, start_step, self.now, self.now, start_step)
        self.pace = RankPace(42)
        self.look()

    def look(self) -> None:
        self.pace.look(self.slot, self.now)

    def wait(self, seconds: float) -> None:
        """Nothing happens for so long, looked at once a second."""
        end = self.now + int(seconds * S)
        while self.now + S <= end:
            self.now += S
            self.look()
        self.now = end

    def enter(self, phase: str) -> None:
        self.slot = replace(self.slot, phase=phase, progress_ns=self.now, beat_ns=self.now)
        self.look()

    def step(self, seconds: float, count: int = 1) -> None:
        for _ in range(count):
            self.wait(seconds)
            self.slot = replace(self.slot, step=self.slot.step + 1, progress_ns=self.now, beat_ns=self.now)

    def told(self) -> Pace:
        self.look()
        told = self.pace.told(self.now)
        assert told is not None
        return told


def training(start_step: int = 0) -> Rank:
    rank = Rank("training", start_step)
    rank.step(41.0)
    rank.look()
    return rank


def test_the_first_step_is_apart_from_the_others() -> None:
    rank = training(start_step=90)
    rank.step(2.0, 10)
    told = rank.told()
    assert told.first_step_s == pytest.approx(41.0)
    assert (told.steps, told.step_median_s, told.step_longest_s) == (10, pytest.approx(2.0), pytest.approx(2.0))


def test_the_longest_step_is_remembered_and_does_not_move_the_median() -> None:
    rank = training()
    rank.step(1.0, 20)
    rank.step(15.0)
    rank.step(1.0, 20)
    told = rank.told()
    assert told.step_median_s == pytest.approx(1.0) and told.step_longest_s == pytest.approx(15.0)


def test_many_steps_between_two_looks_count_as_many_of_their_mean() -> None:
    rank = training()
    rank.step(0.01, 1000)
    told = rank.told()
    assert told.steps == 1000 and told.step_median_s == pytest.approx(0.01, rel=0.05)


def test_what_is_recent_shows_a_rank_that_became_slow() -> None:
    rank = training()
    rank.step(1.0, 50)
    rank.step(9.0, 10)
    told = rank.told()
    assert told.step_median_s == pytest.approx(1.0) and told.step_recent_s == pytest.approx(9.0)


def test_each_phase_has_statistics_of_its_own() -> None:
    rank = Rank("starting")
    rank.wait(5)
    rank.enter("loading")
    rank.wait(12)
    rank.enter("training")
    for seconds in (3, 4, 5):
        rank.step(1.0, 3)
        rank.look()
        rank.enter("saving")
        rank.wait(seconds)
        rank.enter("training")
    rank.step(1.0, 3)
    told = rank.told()
    assert told.phases["starting"] == PhasePace(1, 5.0, 5.0) and told.phases["loading"] == PhasePace(1, 12.0, 12.0)
    saving = told.phases["saving"]
    assert (saving.count, saving.longest_s) == (3, pytest.approx(5.0)) and 3.0 <= saving.median_s <= 5.0
    assert told.step_longest_s == pytest.approx(1.0), "no save is counted as a step"
    assert "training" not in told.phases


def test_the_age_of_the_present_phase() -> None:
    rank = training()
    rank.enter("evaluation")
    rank.wait(30)
    assert rank.told().phase_age_s == pytest.approx(30.0)
    assert "evaluation" not in rank.told().phases, "it is not over"


def test_the_time_that_the_agent_was_stopped_itself_is_nobodys_pace() -> None:
    """Suspended for an hour with all its ranks."""
    rank = training()
    rank.step(1.0, 20)
    rank.look()
    rank.now += 3600 * S
    rank.step(0.5)
    rank.look()
    rank.enter("saving")
    rank.now += 3600 * S
    rank.look()
    rank.enter("training")
    rank.step(1.0, 5)
    told = rank.told()
    assert told.step_longest_s is not None and told.step_longest_s < LATE_LOOK_S
    assert "saving" not in told.phases


def test_nothing_is_said_before_a_slot_was_written() -> None:
    book = PaceBook()
    book.look([None, None], S)
    assert book.told(0, S) is None and book.told(7, S) is None


def test_another_process_begins_anew() -> None:
    book = PaceBook()
    first = Slot(42, "training", 0, 0, S, S, 0)
    for step in range(1, 9):
        book.look([replace(first, step=step, progress_ns=step * S)], step * S)
    before = book.told(0, 9 * S)
    book.look([Slot(43, "starting", 0, 0, 10 * S, 10 * S, 0)], 10 * S)
    after = book.told(0, 10 * S)
    assert before is not None and before.steps == 7 and after == Pace(phase_age_s=0.0)


def test_the_sketch_stays_small_and_forgets() -> None:
    sketch = Sketch()
    sketch.add(3600.0)
    for i in range(int(FORGET_AT) * 4):
        sketch.add(0.5 + (i % 100) / 100)
    assert sketch.count == 1 + int(FORGET_AT) * 4 and len(sketch.bins) < 120
    assert sketch.median == pytest.approx(1.0, rel=0.15)
    assert sketch.longest is not None and sketch.longest < 2.0


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_odd_durations(seconds: float) -> None:
    sketch = Sketch()
    sketch.add(seconds)
    assert sketch.median == sketch.longest == seconds
