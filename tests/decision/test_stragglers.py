"""Who is slower than its own kind: a worker against its equals, never a stage against other stages."""

import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decision.stragglers import Comparison, Timing, _median_without, compare

pytestmark = pytest.mark.pure

COST = {"forward-compute": 0.2, "backward-compute": 0.4, "gc": 0.001, "grads-reduce-scatter": 0.3}


def world(
    slow: dict[int, float] | None = None,
    stages: int = 2,
    replicas: int = 4,
    steps: int = 10,
    noise: float = 0.0,
    seed: int = 1,
) -> list[Timing]:
    """Worker `stage * replicas + replica`; the last stage does half as much again. `slow`: worker -> factor."""
    chance = random.Random(seed)
    rows = []
    for worker in range(stages * replicas):
        stage = worker // replicas
        for step in range(steps):
            for operation, cost in COST.items():
                seconds = cost * (1.5 if stage == stages - 1 else 1.0) * (slow or {}).get(worker, 1.0)
                seconds *= 1.0 + chance.uniform(-noise, noise)
                rows.append(Timing(worker, f"stage {stage}", operation, step, seconds))
    return rows


def test_equal_workers_of_unequal_stages() -> None:
    found = compare(world())
    assert found.stragglers == () and found.imbalance == pytest.approx(1.2)


def test_one_slow_worker_is_named_with_its_factor() -> None:
    (found,) = compare(world({1: 2.0}, noise=0.03)).stragglers
    assert (found.worker, found.role, found.share) == (1, "stage 0", 1.0)
    assert found.slowdown == pytest.approx(2.0, rel=0.05)


def test_a_slow_worker_of_the_slow_stage_and_one_of_the_other() -> None:
    assert compare(world({0: 1.3, 6: 1.5})).workers == (0, 6)


@pytest.mark.parametrize("slow", [{0: 1.05}, {0: 2.0, 1: 2.0}, {0: 0.5}], ids=["a little", "half of them", "faster"])
def test_nobody_is_named(slow: dict[int, float]) -> None:
    assert compare(world(slow)).stragglers == ()


def test_two_equals_can_only_disagree() -> None:
    found = compare(world({0: 3.0}, replicas=2))
    assert found.stragglers == () and "disagree" in found.undecided["stage 0"]


def test_all_workers_of_a_slow_replica_are_named() -> None:
    """Eight workers in step with each other on one host, four hosts."""
    rows = world(dict.fromkeys(range(8), 1.8), stages=1, replicas=32)
    assert compare(rows).workers == tuple(range(8))


@pytest.mark.parametrize("operation", ["forward-recv", "params-all-gather", "AllReduce", "embedding-grads-all-reduce"])
def test_waiting_for_others_blames_nobody(operation: str) -> None:
    rows = [
        Timing(worker, "stage 0", operation, step, 9.0 if worker == 0 else 1.0)
        for worker in range(4)
        for step in range(9)
    ]
    assert compare(rows).stragglers == ()


def test_slow_in_one_operation_only_is_not_a_slow_worker() -> None:
    rows = [t if (t.worker, t.operation) != (0, "forward-compute") else _times(t, 3.0) for t in world()]
    assert compare(rows).stragglers == ()


def test_an_operation_that_does_not_matter_clears_nobody() -> None:
    rows = [t if (t.worker, t.operation) != (0, "gc") else _times(t, 0.4) for t in world({0: 2.0})]
    assert compare(rows).workers == (0,)


@pytest.mark.parametrize(("bad_steps", "named"), [(9, True), (5, False), (1, False)])
def test_it_must_last(bad_steps: int, named: bool) -> None:
    rows = [_times(t, 3.0) if t.worker == 0 and t.step < bad_steps else t for t in world()]
    assert compare(rows).workers == ((0,) if named else ())


def test_too_few_steps_say_nothing() -> None:
    assert compare(world({0: 3.0}, steps=2)).stragglers == ()


def test_peers_that_differ_among_themselves_name_nobody() -> None:
    """Sequences of very different length: 30 % either way is the nature of this run."""
    assert compare(world({0: 1.15}, noise=0.3, steps=40)).stragglers == ()


def test_chunks_of_a_model_are_compared_each_with_its_own_kind() -> None:
    """A worker that holds the heavy chunk and one that holds the light chunk are not equals."""
    rows = [
        Timing(w, "stage 0", "forward-compute", step, 3.0 if chunk == "1" else 1.0, chunk)
        for w in range(4)
        for step in range(6)
        for chunk in ("0", "1")
        if not (w == 0 and chunk == "0")
    ]
    assert compare(rows).stragglers == ()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_durations_that_are_none_are_left_out(seconds: float) -> None:
    rows = [*world({1: 2.0}), Timing(2, "stage 0", "forward-compute", 3, seconds)]
    assert compare(rows).workers == (1,)


def test_nothing_at_all() -> None:
    assert compare([]) == Comparison((), {}, 1.0)


# --- properties ---------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(factor=st.floats(1e-6, 1e6), order=st.randoms(use_true_random=False))
def test_neither_the_unit_nor_the_order_matters(factor: float, order: random.Random) -> None:
    rows = world({1: 1.5, 6: 2.5}, noise=0.02)
    changed = [_times(t, factor) for t in rows]
    order.shuffle(changed)
    before, after = compare(rows), compare(changed)
    assert after.workers == before.workers == (1, 6)
    for old, new in zip(before.stragglers, after.stragglers, strict=True):
        assert (new.worker, new.share) == (old.worker, old.share) and new.slowdown == pytest.approx(old.slowdown)


@settings(max_examples=40, deadline=None)
@given(noise=st.floats(0.0, 0.05), seed=st.integers(0, 10**6))
def test_noise_below_the_effect_blames_nobody(noise: float, seed: int) -> None:
    assert compare(world(noise=noise, seed=seed)).stragglers == ()


def _times(timing: Timing, factor: float) -> Timing:
    return Timing(timing.worker, timing.role, timing.operation, timing.step, timing.seconds * factor, timing.chunk)


@given(st.lists(st.floats(0.001, 1000.0), min_size=2, max_size=9), st.data())
def test_the_median_of_all_the_others(durations: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(durations) - 1))
    others = durations[:place] + durations[place + 1 :]
    assert _median_without(durations[place], sorted(durations)) == pytest.approx(median(others))


def test_two_slow_ones_among_very_many() -> None:
    noisy = random.Random(7)
    rows = [
        Timing(worker, "", "compute", step, noisy.uniform(0.97, 1.03) * (1.4 if worker in (17, 300) else 1.0))
        for worker in range(400)
        for step in range(12)
    ]
    found = compare(rows)
    assert found.workers == (17, 300) and found.stragglers[0].slowdown == pytest.approx(1.4, rel=0.05)
