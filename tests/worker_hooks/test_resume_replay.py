"""Replayed losses, the band learned from the run's own noise, and the forecast after a resume. No rank is started."""

import math
import random

import pytest

from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.resuming.replay import WATCHED, Replay, demand_replay, noise, spread

pytestmark = pytest.mark.torch


def curve(steps: int, noise_of: float = 0.1, seed: int = 5) -> dict[int, float]:
    """A loss that falls slowly under noise, from step 1."""
    draw = random.Random(seed)
    return {step: 3.0 * math.exp(-step / 400) + draw.gauss(0.0, noise_of) for step in range(1, steps + 1)}


def replay(losses: dict[int, float], step: int, *, exact: bool = False, comparable: bool = True) -> Replay:
    return Replay({at: loss.hex() for at, loss in losses.items()}, step, exact=exact, comparable=comparable)


def test_the_spread_is_that_of_a_normal_distribution_and_an_outlier_changes_little() -> None:
    draw = random.Random(1)
    values = [draw.gauss(10.0, 2.0) for _ in range(4000)]
    assert spread(values) == pytest.approx(2.0, rel=0.05)
    assert spread([*values, 1e9, math.nan, -math.inf]) == pytest.approx(spread(values), rel=0.01)
    assert spread([1.0]) == spread([]) == noise([3.0]) == 0.0


def test_exact_means_to_the_bit() -> None:
    losses = curve(20)
    same, other = replay(losses, 10, exact=True), replay(losses, 10, exact=True)
    found = same.check(11, losses[11])
    assert found is not None and found.outcome == "PASS"
    found = other.check(11, math.nextafter(losses[11], 9.0))
    assert found is not None and found.outcome == "FAIL"
    with pytest.raises(VerificationFailed, match="rank 3's loss of replayed step 11"):
        demand_replay(found, 11, 3)


@pytest.mark.parametrize("noise_of", [0.5, 0.05])
def test_the_band_follows_the_runs_own_noise(noise_of: float) -> None:
    """Another order of summation stays inside, another batch of the same run does not."""
    losses = curve(60, noise_of)
    for share, outcome in ((1e-6, "DEGRADED"), (0.1, "DEGRADED"), (1.5, "FAIL"), (-1.5, "FAIL")):
        found = replay(losses, 50).check(51, losses[51] + share * noise_of)
        assert found is not None and found.outcome == outcome, (share, found)


def test_a_step_is_compared_once_and_unknown_ones_are_not() -> None:
    losses = curve(12)
    watched = replay(losses, 10)
    assert watched.check(11, losses[11]) is not None
    few = replay({1: 2.0, 2: 2.1}, 2)
    assert few.check(3, 100.0) is None, "two losses are no noise to judge by"


def test_on_another_number_of_ranks_only_the_forecast_is_left() -> None:
    losses = curve(40)
    assert replay(losses, 30, comparable=False).check(31, losses[31] + 0.05) is None
    found = replay(losses, 30, comparable=False).check(31, 40.0)
    assert found is not None and found.code == "LOSS_SPIKE"


def test_a_spike_right_after_the_resume_names_what_would_explain_it() -> None:
    """R12: the loss scale starts at 65536 again, nobody tracks the scaler, and the loss jumps."""
    watched = replay(curve(40, 0.01), 40)
    assert watched.check(41, 2.72, ["scaler (not tracked)"]) is None
    found = watched.check(42, 30.4, ["scaler (not tracked)", "learning_rate"])
    assert found is not None
    assert (found.outcome, found.code) == ("DEGRADED", "LOSS_SPIKE")
    assert "30.4" in str(found.why) and "scaler (not tracked), learning_rate" in str(found.why)
    demand_replay(found, 42, 0)


def test_ordinary_noise_is_no_spike_and_the_watch_ends() -> None:
    losses = curve(400)
    before = {step: loss for step, loss in losses.items() if step <= 300}
    watched = replay(before, 300)
    assert all(watched.check(step, losses[step]) is None for step in range(301, 401))
    assert watched.check(401, 1e6) is None, f"only {WATCHED} steps are watched"
    found = replay(before, 300).check(301, math.nan)
    assert found is not None and found.code == "LOSS_SPIKE"


def test_no_number_again_right_after_the_same_checkpoint_fails() -> None:
    """R27: a state that gives NaN twice gives it each time; later on in a run it may be the data's."""
    losses = curve(20) | {11: math.nan, 15: math.nan}
    found = replay(losses, 10, exact=True).check(11, math.nan)
    assert found is not None and (found.outcome, found.code) == ("FAIL", "NOT_FINITE")
    found = replay(losses, 10, exact=True).check(15, math.nan)
    assert found is not None and found.outcome == "PASS"
    found = replay(curve(20), 10).check(11, math.nan)
    assert found is not None and found.outcome == "FAIL"
