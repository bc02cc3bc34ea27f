"""Resume case R19 (16 ranks, then 12) with relatives: what each policy makes of the numbers, and what real ranks do and
say after the number of ranks changed twice and the batch with it."""

from typing import Any

import pytest

from tests.worker_hooks.conftest import World
from worker_hooks.protocol import generations
from worker_hooks.training.resuming.elastic import POLICIES, Batch, ElasticRefused, Plan, plan

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        ((16, 2, 1), (12, 2), "Global batch 32 cannot be kept with 12 ranks x micro batch 2: 24 or 48."),
        ((4, 3, 1), (3, 3), "Global batch 12 cannot be kept with 3 ranks x micro batch 3: 9 or 18."),
        ((3, 4, 2), (5, 4), "Global batch 24 cannot be kept with 5 ranks x micro batch 4: 20 or 40."),
        ((4, 3, 1), (3, 4), "Global batch 12 is 1 accumulated batches of 3 ranks x micro batch 4."),
        ((16, 2, 1), (12, 8), "Global batch 32 cannot be kept with 12 ranks x micro batch 8: 96."),
    ],
)
def test_without_a_policy_or_with_one_that_cannot_be_the_numbers_are_said(
    saved: tuple[int, int, int], now: tuple[int, int], said: str
) -> None:
    """R19: the micro batch may be another one as well."""
    before, after = Batch(*saved), Batch(*now, 1)
    with pytest.raises(ElasticRefused) as caught:
        plan(None, before, after)
    assert said in str(caught.value) and all(policy in str(caught.value) for policy in POLICIES)
    if "cannot" in said:
        with pytest.raises(ElasticRefused, match=said.replace("(", r"\(")):
            plan("keep_global_batch", before, after)
    else:
        assert plan("keep_global_batch", before, after) == Plan(1, 1.0)


@pytest.mark.parametrize(
    ("saved", "now", "ratio"),
    [((16, 2, 1), (12, 2), 0.75), ((4, 3, 2), (3, 4), 1.0), ((3, 4, 2), (5, 4), 5 / 3), ((16, 2, 1), (12, 8), 3.0)],
)
def test_the_rate_follows_the_global_batch(saved: tuple[int, int, int], now: tuple[int, int], ratio: float) -> None:
    """R19: by a named rule, with as many batches to an update as before."""
    before, after = Batch(*saved), Batch(*now, 1)
    for policy, factor in (("scale_lr:linear", ratio), ("scale_lr:sqrt", ratio**0.5), ("keep_lr", 1.0)):
        found = plan(policy, before, after)
        assert (found.accumulation, found.lr_factor) == (saved[2], pytest.approx(factor))


def resume(world: World, name: str, ranks: int, **options: Any) -> dict[str, dict[str, Any]]:
    """What rank 0 said before its first step, by the name of the check."""
    run_dir = world.new_run_dir(name, ranks)
    world.finish(ranks, samples=96, env={"RELUME_RUN_DIR": str(run_dir)}, **options)
    record = next(event for event in world.events(run_dir, 0) if event["kind"] == "verification")
    return {check["name"]: check for check in record["checks"]}


def ledger(world: World) -> dict[str, Any]:
    folder = world.run / generations.accepted_folders(world.run)[0]
    found: dict[str, Any] = generations.read_rank_file(folder, 0).data["loaders"]["loader"]["ledger"]
    return found


def test_a_global_batch_that_is_kept_by_accumulation_is_the_same_batch(world: World) -> None:
    """R19, R04: 4 ranks x 3, then 2 x 3 in two batches, over the end of an epoch, then 3 x 4: always 12 samples."""
    world.finish(4, samples=96, batch=3, total=3)
    moved = resume(world, "second", 2, batch=3, total=10, accumulate=2, elastic="keep_global_batch")
    same = resume(world, "third", 2, batch=3, total=13, accumulate=2)
    again = resume(world, "fourth", 3, batch=4, total=15, elastic="keep_global_batch")
    for checks, samples in ((moved, 36), (same, 120), (again, 156)):
        assert "global_batch" not in checks, "it is what it was"
        assert (checks["consumed"]["outcome"], checks["consumed"]["actual"]) == ("PASS", samples)
        assert checks["data_ledger"]["outcome"] == "PASS"
    for checks in (moved, again):
        assert checks["random_state"]["why"] == "not exact: the number of ranks changed"
        assert (checks["layout"]["outcome"], checks["data_position"]["outcome"]) == ("RESHARDED", "DEGRADED")
    assert same["layout"]["outcome"] == "PASS"
    found = ledger(world)
    assert {kind: found["totals"][kind] for kind in ("repeated", "skipped", "unknown")} == dict.fromkeys(
        ("repeated", "skipped", "unknown"), 0
    )
    assert (found["spans"][-1]["last"], found["spans"][-1]["ranks"]) == (15 * 12 - 96, 3)


def test_another_global_batch_is_said_and_then_counted_from_there(world: World) -> None:
    """R19, R04: 3 ranks x 4, then 2 x 5 by a policy, then the same after the end of an epoch: 10 a step."""
    world.finish(3, samples=96, batch=4, total=2)
    moved = resume(world, "second", 2, batch=5, total=11, elastic="scale_lr:linear")
    same = resume(world, "third", 2, batch=5, total=12)
    assert [moved["global_batch"][key] for key in ("outcome", "expected", "actual")] == ["DEGRADED", 12, 10]
    assert "global_batch" not in same
    assert (same["consumed"]["outcome"], same["consumed"]["expected"]) == ("PASS", 24 + 9 * 10)
    assert same["random_state"]["outcome"] == same["data_position"]["outcome"] == "PASS"
