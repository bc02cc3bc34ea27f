"""The checks of all ranks as lines: as good as the worst, and never better than what was reported."""

from typing import Any

import pytest

from controller.queries.verification import fold
from tests.dashboard.rows import CHECKS, checks

pytestmark = pytest.mark.pure


def test_every_line_of_every_rank_agrees() -> None:
    found = fold(checks(4, 120), 4)
    assert found.outcome == "PASS" and found.agreeing == 8
    assert [line.name for line in found.lines] == list(CHECKS)
    assert {(line.agreeing, line.ranks) for line in found.lines} == {(4, 4)}


def test_one_rank_that_differs_is_named_with_what_it_had() -> None:
    found = fold(checks(4, 120, random_state=("aa", "bb")), 4)
    (line,) = [line for line in found.lines if line.outcome == "FAIL"]
    assert (line.name, line.worst_rank, line.expected, line.actual) == ("random_state", 1, "aa", "bb")
    assert (line.agreeing, line.ranks) == (3, 4)
    assert found.outcome == "FAIL"


def test_a_missing_rank_is_waited_for() -> None:
    found = fold(checks(3, 120), 4)
    assert found.outcome == "" and found.waiting == 1


def test_a_failure_needs_no_waiting() -> None:
    assert fold(checks(2, 120, optimizer=("1", "2")), 4).outcome == "FAIL"


@pytest.mark.parametrize("word", ["", "pass?", None, "OK"])
def test_a_word_that_is_not_known_is_no_pass(word: Any) -> None:
    said = {"0": {"before_first_step": {"outcome": word, "checks": []}}}
    assert fold(said, 1).outcome == "FAIL"


@pytest.mark.parametrize("broken", [{"0": None}, {"0": {"before_first_step": 3}}, {"0": {}}, {}])
def test_what_cannot_be_read_is_no_agreement(broken: dict[str, Any]) -> None:
    assert fold(broken, 1).outcome == ""
