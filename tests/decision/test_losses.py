"""Loss spikes that heal, that do not, and losses that are no numbers."""

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decision.losses import CALM, LossState, fold, state_from_json, state_to_json

pytestmark = pytest.mark.pure


def curve(steps: int = 200, start: float = 4.0, noise: float = 0.02, seed: int = 3) -> list[tuple[int, float]]:
    chance = random.Random(seed)
    return [(step, start / (1 + step / 100) + 1.5 + chance.gauss(0, noise)) for step in range(1, steps + 1)]


def with_values(points: list[tuple[int, float]], changes: dict[int, float]) -> list[tuple[int, float]]:
    return [(step, changes.get(step, value)) for step, value in points]


def test_a_curve_that_falls_has_nothing_to_say() -> None:
    state = fold(LossState(), curve())
    assert (state.spikes, state.not_finite, state.count, state.last_finite_step) == ((), 0, 200, 200)


def test_a_spike_that_heals() -> None:
    state = fold(LossState(), with_values(curve(), {120: 6.0, 121: 5.5, 122: 5.2}))
    (spike,) = state.spikes
    assert (spike.step, spike.value, spike.healed) == (120, 6.0, True)
    assert spike.healed_step == 122 + CALM and state.open_spike is None


def test_a_loss_that_stays_high_has_not_healed() -> None:
    state = fold(LossState(), with_values(curve(), dict.fromkeys(range(120, 201), 7.0)))
    assert state.open_spike is not None and state.open_spike.step == 120


def test_single_nans_and_a_row_of_them() -> None:
    state = fold(LossState(), with_values(curve(), {50: math.nan, 80: math.inf}))
    assert (state.not_finite, state.bad_since, state.bad_steps, state.spikes) == (2, None, 0, ())
    state = fold(LossState(), with_values(curve(), dict.fromkeys(range(150, 201), math.nan)))
    assert (state.bad_since, state.bad_steps, state.last_finite_step) == (150, 51, 149)


def test_nothing_is_a_jump_before_anything_was_learned() -> None:
    assert fold(LossState(), [(1, 11.0), (2, 90.0), (3, 8.0)]).spikes == ()


def test_repetitions_are_left_out() -> None:
    points = curve()
    assert fold(fold(LossState(), points), points[50:]) == fold(LossState(), points)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 199), max_size=12))
def test_how_the_points_are_batched_changes_nothing(cuts: list[int]) -> None:
    points = with_values(curve(), {60: math.nan, 120: 6.0, 121: 7.0})
    state = LossState()
    edges = [0, *sorted(cuts), 200]
    for begin, end in pairwise(edges):
        state = fold(state, points[begin:end])
    assert state == fold(LossState(), points)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 0.2), st.integers(0, 10**6))
def test_noise_alone_is_no_spike_that_stays(noise: float, seed: int) -> None:
    assert fold(LossState(), curve(noise=noise, seed=seed)).open_spike is None


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_the_state_is_plain_json_whatever_comes(odd: float) -> None:
    state = fold(LossState(), with_values(curve(), {90: odd, 120: 9.0}))
    stored = json.loads(json.dumps(state_to_json(state), allow_nan=False))
    assert state_from_json(stored) == state and state.not_finite == 1
