"""How long each kind of work may stand still: a floor, and what the run itself has shown."""

from typing import Any

import pytest

from controller.decision.attempt_facts import AttemptFact, LearnedPace
from controller.decision.policy import Stall
from controller.decision.stall_limits import limit_s

pytestmark = pytest.mark.pure


def limit(kind: str, seen: dict[str, LearnedPace], **stall: Any) -> float:
    return limit_s(kind, AttemptFact(1, "running", "7", 0, learned=seen), Stall(**stall))


def test_a_limit_is_the_largest_of_floor_median_and_longest() -> None:
    assert limit("step", {"step": LearnedPace(100, 0.5, 4.0)}) == 300.0
    assert limit("step", {"step": LearnedPace(100, 105.0, 110.0)}) == 1050.0
    assert limit("step", {"step": LearnedPace(100, 1.0, 250.0)}) == 750.0
    assert limit("saving", {"saving": LearnedPace(2, 200.0, 900.0)}) == 2700.0


def test_what_is_learned_is_looser_than_the_prior_only_where_the_run_has_shown_it() -> None:
    assert limit("first_step", {"first_step": LearnedPace(1, 600.0, 600.0)}) == 3600.0
    assert limit("evaluation", {"evaluation": LearnedPace(2, 3000.0, 5000.0)}) == 15_000.0


def test_few_steps_teach_little_and_a_slow_first_one_loosens() -> None:
    assert limit("step", {"step": LearnedPace(4, 0.1, 0.1)}) == 1800.0
    assert limit("step", {}) == 1800.0
    assert limit("step", {"first_step": LearnedPace(1, 2400.0, 2400.0)}) == 7200.0
