"""Time parts sum to the wall clock and phases to the RTO: as printed, for any story."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.queries.phases import NAMES, phases_of
from controller.queries.time_budget import DOWN, KEPT, QUEUE, REPEATED, SAVING, START, Life, time_budget
from dashboard import formats

pytestmark = pytest.mark.pure

# Two attempts: fault at 500, the second begins to make new steps at 700.
FIRST = Life(
    launched=100.0, first_step=130.0, first_new_step=130.0, last_step=499.0, ended=520.0, fault=500.0, requeued=510.0
)
SECOND = Life(launched=600.0, first_step=640.0, first_new_step=700.0, last_step=990.0, blocked_s=5.0)


def kinds(lives: list[Life], end: float = 1000.0, *, over: bool = False) -> dict[str, float]:
    budget = time_budget(0.0, end, lives, over)
    return {part.kind: round(part.units * budget.unit_s, 3) for part in budget.parts}


def test_each_second_has_its_place() -> None:
    assert kinds([FIRST, SECOND]) == {
        QUEUE: 100.0 + 90.0,
        START: 30.0 + 40.0,
        DOWN: 10.0,
        REPEATED: 60.0,
        KEPT: 370.0 + 300.0 - 5.0,
        SAVING: 5.0,
    }


def test_the_share_kept_is_of_the_whole_wall_clock() -> None:
    assert time_budget(0.0, 1000.0, [FIRST, SECOND], False).ettr == 0.665


def test_before_the_first_launch_all_is_queue() -> None:
    assert kinds([], 50.0) == {QUEUE: 50.0}
    assert time_budget(0.0, 50.0, [], False).ettr is None


def test_an_attempt_without_a_step_is_start_until_its_fault() -> None:
    assert kinds([Life(launched=10.0, ended=40.0, fault=30.0)], 100.0, over=True) == {
        QUEUE: 10.0,
        START: 20.0,
        DOWN: 70.0,
    }


def test_steps_repeated_until_now_are_not_kept() -> None:
    assert kinds([FIRST, Life(launched=600.0, first_step=640.0)], 660.0)[REPEATED] == 20.0


times = st.floats(0, 90_000, allow_nan=False)
maybe = st.none() | times
life = st.builds(Life, times, maybe, maybe, maybe, maybe, maybe, maybe, st.floats(0, 500))


@given(times, times, st.lists(life, max_size=5), st.booleans())
def test_parts_always_sum_to_the_wall_clock(created: float, lasted: float, lives: list[Life], over: bool) -> None:
    """Whatever the clocks of the nodes said, and in whatever order."""
    budget = time_budget(created, created + lasted, lives, over)
    assert sum(part.units for part in budget.parts) == budget.total
    assert all(part.units > 0 for part in budget.parts)
    assert abs(budget.total * budget.unit_s - lasted) <= budget.unit_s


def stamps(**at: float) -> dict[str, Any]:
    return {name: {"at": seconds, "source": f"row:{name}"} for name, seconds in at.items()}


def test_phases_join_the_stamps_that_exist() -> None:
    found = phases_of(
        stamps(last_good=99.0, fault=100.0, detected=103.44, requeued=108.0, first_new_step=120.0, verified=121.0)
    )
    assert [(p.name, p.seconds) for p in found.phases] == [
        ("detected", 3.4),
        ("requeued", 4.6),
        ("first_new_step", 12.0),
    ]
    assert (found.total, found.verified_after) == (200, 10)
    assert "Held" in found.missing and "Detected" not in found.missing
    assert found.phases[0].source == "row:detected"


def test_without_a_fault_or_a_new_step_there_is_no_sum() -> None:
    assert phases_of(stamps(detected=3.0)).phases == ()
    open_end = phases_of(stamps(fault=1.0, detected=3.0))
    assert open_end.total is None and [p.seconds for p in open_end.phases] == [2.0]


def test_a_stamp_that_cannot_be_read_is_missing_not_zero() -> None:
    found = phases_of(
        {"fault": {"at": 1.0}, "detected": {"at": None}, "held": {"at": "soon"}, "first_new_step": {"at": 9.0}}
    )
    assert [p.name for p in found.phases] == ["first_new_step"]


@given(st.dictionaries(st.sampled_from(sorted(NAMES)), st.floats(1_796_000_000, 1_796_009_999)))
def test_phases_always_sum_to_the_recovery_time(at: dict[str, float]) -> None:
    found = phases_of(stamps(**at))
    assert all(p.tenths >= 0 for p in found.phases)
    if found.total is not None and found.total >= 0:
        assert sum(p.tenths for p in found.phases) == found.total


def test_times_are_utc_and_durations_know_nothing_of_summer_time() -> None:
    """D09: the night the clocks change in Paris lasts what it lasts, and the page says UTC."""
    winter = datetime(2026, 3, 29, 1, 30, tzinfo=timezone(timedelta(hours=1)))
    summer = datetime(2026, 3, 29, 3, 30, tzinfo=timezone(timedelta(hours=2)))
    assert formats.duration((summer - winter).total_seconds()) == "1 h 00 min"
    assert formats.exact(winter) == "2026-03-29 00:30:00 UTC"
    assert formats.clock(summer.astimezone(UTC)) == "01:30:00"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (24.4, "24 s"),
        (535, "8 min 55 s"),
        (600, "10 min"),
        (4320, "1 h 12 min"),
        (266400, "3 d 2 h"),
    ],
)
def test_durations_show_the_two_largest_units(value: float | None, text: str) -> None:
    assert formats.duration(value) == text


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [
        (214, 0.1, "21.4 s"),
        (1234, 0.1, "2 m 03.4 s"),
        (75690, 1.0, "21 h 01 m 30 s"),
        (412, 1.0, "6 m 52 s"),
        (0, 1.0, "0 s"),
    ],
)
def test_sums_are_printed_exactly(count: int, unit: float, text: str) -> None:
    assert formats.units(count, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (2.0634, "2.063"),
        (2.4e-5, "2.40e-05"),
        (float("nan"), "not a number"),
        (1234.5, "1,234.500"),
    ],
)
def test_none_is_a_dash_and_zero_is_zero(value: float | None, text: str) -> None:
    assert formats.decimals(value) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("its agent is silent", "Its agent is silent"),
        ("gpu1: silent", "gpu1: silent"),
        ("", ""),
        ("rank 3 died", "Rank 3 died"),
    ],
)
def test_a_sentence_begins_large_unless_with_a_name(text: str, said: str) -> None:
    assert formats.sentence(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("['0x1.825dfa1ff2c0bp-11']", "0.00073694"),
        ("50", "50"),
        ("[1, 2]", "[1, 2]"),
        ("0x12", "0x12"),
        ("0x1p+3", "8"),
    ],
)
def test_recorded_values_are_readable(text: str, said: str) -> None:
    assert formats.recorded(text) == said


def test_logs_lose_colour_and_what_reorders_text() -> None:
    raw = "\x1b[31mred\x1b[0m \x1b]0;title\x07ok \x08back \u202egnp.exe\r\nnext\tend"
    assert formats.plain(raw) == "red ok \ufffdback \ufffdgnp.exe\nnext\tend"
