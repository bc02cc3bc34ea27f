"""The canonical curve and its reduction: what users reported broken elsewhere, and properties for any curve."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.queries import curve
from controller.queries.curve import Curve, Series, Trace

pytestmark = pytest.mark.pure


def series(attempt: int, first: int, last: int, start: int | None = None, **odd: float) -> Series:
    steps = list(range(first, last + 1))
    values = [odd.get(f"s{s}", 1000.0 * attempt + s) for s in steps]
    return Series(attempt, start, steps, [float(s) for s in steps], values)


def steps(found: Curve, attempt: int, *, kept: bool) -> list[int]:
    traces = [t for t in found.traces if t.attempt == attempt and t.kept == kept]
    return [p.step for t in traces for p in t.points]


def test_a_restart_cuts_the_older_attempt_and_keeps_its_tail_apart() -> None:
    """D01: attempt 1 up to 100, attempt 2 from there; no line from 150 back to 100, no step twice in the kept curve."""
    found = curve.build([series(1, 0, 150), series(2, 100, 200)])
    assert steps(found, 1, kept=True) == list(range(100))
    assert steps(found, 1, kept=False) == list(range(100, 151))
    assert steps(found, 2, kept=True) == list(range(100, 201))
    kept = steps(found, 1, kept=True) + steps(found, 2, kept=True)
    assert kept == sorted(set(kept))


def test_an_attempt_that_has_not_stepped_yet_takes_over_from_its_checkpoint() -> None:
    found = curve.build([series(1, 1, 150), Series(2, start_step=100)])
    assert steps(found, 1, kept=True) == list(range(1, 101))
    assert steps(found, 1, kept=False) == list(range(101, 151))


def test_an_attempt_that_began_and_never_stepped_from_an_unknown_place_takes_nothing() -> None:
    found = curve.build([series(1, 1, 150), Series(2)])
    assert steps(found, 1, kept=False) == []


def test_an_older_checkpoint_than_the_last_abandons_two_tails() -> None:
    """wandb 7951: the third start is right too, also when it resumes from before the second."""
    found = curve.build([series(1, 1, 150), series(2, 101, 180, 100), series(3, 51, 60, 50)])
    assert steps(found, 1, kept=True) == list(range(1, 51))
    assert steps(found, 2, kept=True) == []
    assert steps(found, 2, kept=False) == list(range(101, 181))
    assert steps(found, 3, kept=True) == list(range(51, 61))


def test_a_requeued_job_that_begins_at_zero_shows_so() -> None:
    """Lightning 13524: what was trained before is all a tail; nothing of it is hidden or mixed in."""
    found = curve.build([series(1, 1, 150), series(2, 1, 20, 0)])
    assert steps(found, 1, kept=True) == []
    assert steps(found, 1, kept=False) == list(range(1, 151))
    assert steps(found, 2, kept=True) == list(range(1, 21))


def test_points_after_the_last_checkpoint_are_not_lost() -> None:
    """wandb 1040: every point that was stored is drawn, kept or abandoned."""
    parts = [series(1, 1, 170), series(2, 101, 120, 100)]
    found = curve.build(parts)
    drawn = sorted((t.attempt, p.step) for t in found.traces for p in t.points)
    assert drawn == sorted((s.attempt, step) for s in parts for step in s.steps)


def test_a_late_point_of_an_old_attempt_never_wins() -> None:
    """D03: the attempt decides, not when a point arrived."""
    late = [series(2, 101, 170, 100), series(1, 1, 170)]
    in_order = curve.build([late[1], late[0]])
    assert curve.build(late).traces == in_order.traces


def test_the_newest_word_on_a_step_wins_within_an_attempt() -> None:
    assert curve.ordered([(3, 1.0, 5.0), (1, 2.0, 6.0), (3, 3.0, 7.0)]) == ([1, 3], [2.0, 3.0], [6.0, 7.0])


def test_not_a_number_is_a_gap_and_is_told() -> None:
    """D07: 2 and 3 are gaps and listed; nothing joins 1 and 4."""
    raw = [(1, 2.0), (2, "NaN"), (3, "Infinity"), (4, 2.1)]
    one = Series(1, None, [s for s, _ in raw], [0.0] * 4, [curve.number(v) for _, v in raw])
    found = curve.build([one])
    (trace,) = found.traces
    assert [(p.step, p.y) for p in trace.points] == [(1, 2.0), (2, None), (3, None), (4, 2.1)]
    assert [(n.step, n.kind) for n in found.not_finite] == [(2, "not a number"), (3, "infinity")]
    json.dumps([p._asdict() for p in trace.points], allow_nan=False)


@pytest.mark.parametrize("raw", [None, "nan?", True, [], {}])
def test_a_stored_value_that_cannot_be_read_is_not_a_number(raw: object) -> None:
    assert math.isnan(curve.number(raw))


def test_a_spike_survives_a_million_points() -> None:
    """D05: the spike is the bin's extreme, whatever is around it."""
    steps_ = range(1_000_000)
    values = [1.201 if s == 1612 else 0.5 for s in steps_]
    found = curve.build([Series(1, None, steps_, steps_, values)])
    (trace,) = found.traces
    assert len(trace.points) <= 2 * curve.MAX_BINS
    assert max(p.high for p in trace.points if p.high is not None) == 1.201
    assert trace.points[0].step == 0 and trace.points[-1].step == 999_999


def test_the_given_dashboard_cases_are_all_answered_for() -> None:
    """Each given case of this kind has its test here or in the endpoint's tests; a new one must be met, not missed."""
    known = {"D01", "D03", "D05", "D07", "D09", "D11"}
    given = Path(__file__).with_name("cases-dashboard.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in given} == known


values = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))
points = st.dictionaries(st.integers(0, 30_000), values, min_size=1, max_size=300)


def whole(found: dict[int, float]) -> Series:
    at = sorted(found)
    return Series(1, None, at, [float(s) for s in at], [found[s] for s in at])


def finite(found: dict[int, float]) -> dict[int, float]:
    return {s: v for s, v in found.items() if math.isfinite(v)}


@given(points)
def test_extremes_and_ends_are_exact(found: dict[int, float]) -> None:
    (trace,) = curve.build([whole(found)], bins=50).traces
    known = finite(found)
    if known:
        assert max(p.high for p in trace.points if p.high is not None) == max(known.values())
        assert min(p.low for p in trace.points if p.low is not None) == min(known.values())
    for end in (min(found), max(found)):
        if end in known:
            assert (end, known[end]) in [(p.step, p.y) for p in trace.points]


@given(points)
def test_steps_rise_and_the_line_stays_inside_its_band(found: dict[int, float]) -> None:
    (trace,) = curve.build([whole(found)], bins=50).traces
    at = [p.step for p in trace.points]
    assert at == sorted(set(at))
    for p in trace.points:
        if p.y is not None:
            assert p.low is not None and p.high is not None and p.low <= p.y <= p.high


@given(points)
def test_the_reduction_is_bounded_and_tells_every_odd_value(found: dict[int, float]) -> None:
    made = curve.build([whole(found)], bins=50)
    assert len(made.traces[0].points) <= 2 * 50 + 2
    assert made.not_finite_total == len(found) - len(finite(found))


@given(points, st.integers(1, 400))
def test_closed_bins_stay_as_they_are_while_points_are_appended(found: dict[int, float], more: int) -> None:
    """D11: a refresh appends; what was drawn before the bin that is being filled does not move."""
    last = max(found)
    longer = found | {last + k: 1.0 for k in range(1, more + 1)}
    before, after = curve.build([whole(found)], bins=50), curve.build([whole(longer)], bins=50)
    if before.width != after.width:
        return
    open_bin = last // before.width * before.width

    def closed(trace: Trace) -> list[curve.Point]:
        return [p for p in trace.points if p.step < open_bin]

    assert closed(before.traces[0]) == closed(after.traces[0])


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_width_is_round_and_the_smallest_that_fits(first: int, span: int) -> None:
    width = curve.bin_width(first, first + span, 1000)
    assert int(str(width).rstrip("0")) in (1, 2, 5)
    assert (first + span) // width - first // width + 1 <= 1000
    assert width == 1 or span // width * 5 >= 900  # the next smaller width would have been too narrow


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=6))
def test_every_step_is_kept_once_by_an_attempt_that_nobody_took_over(spans: list[tuple[int, int]]) -> None:
    parts = [series(n, first, first + length, None) for n, (first, length) in enumerate(spans, start=1)]
    found = curve.build(parts)
    kept = [(p.step, t.attempt) for t in found.traces if t.kept for p in t.points]
    assert len({step for step, _ in kept}) == len(kept)
    for step, attempt in kept:
        assert all(step < later.steps[0] for later in parts if later.attempt > attempt)
