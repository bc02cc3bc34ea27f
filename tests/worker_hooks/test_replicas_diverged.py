"""Ranks that should hold the same and do not: committed, told at the save, and told again by every resume from it."""

import json
from typing import Any

import pytest

from tests.worker_hooks.conftest import HERE, World
from worker_hooks.training.state.fingerprint import diverged

pytestmark = pytest.mark.torch
KINDS = HERE / "programs" / "kinds.py"


def attempt(world: World, name: str, ranks: int, **options: Any) -> list[list[dict[str, Any]]]:
    """What each rank told its agent."""
    run_dir = world.new_run_dir(name, ranks)
    given = {"root": str(world.root), "out": str(world.folder / "out"), **options}
    started = world.start(KINDS, [json.dumps(given)], ranks, env={"RELUME_RUN_DIR": str(run_dir)})
    assert started.wait(120) == [0] * ranks, started.text()
    return [world.events(run_dir, rank) for rank in range(ranks)]


@pytest.mark.parametrize(("kind", "ranks", "groups"), [("ddp", 2, [[0], [1]]), ("hybrid", 4, [[1], [3]])])
def test_ranks_that_diverged_are_never_saved_silently(
    world: World, kind: str, ranks: int, groups: list[list[int]]
) -> None:
    """The lint compares at the first save; these go apart after it."""
    told = attempt(world, "first", ranks, kind=kind, diverge=4, steps=4)[0]
    committed = {item["step"]: item["diverged"] for item in told if item.get("state") == "committed"}
    assert committed == {2: [], 4: groups}
    (sign,) = [item for item in told if item.get("code") == "replicas_diverged"]
    assert " and ".join(f"ranks {ranks}" for ranks in groups) in sign["raw"] and "step-00000004.g1" in sign["raw"]
    outcomes = {}
    for rank, events in enumerate(attempt(world, "second", ranks, kind=kind, steps=6)):
        first = next(event for event in events if event["kind"] == "verification")
        outcomes[rank] = next((c["outcome"], c.get("code")) for c in first["checks"] if c["name"] == "replicas")
    assert set(outcomes.values()) == {("DEGRADED", "REPLICAS_DIVERGED")}


def test_only_ranks_that_hold_the_same_shards_are_compared() -> None:
    def shards(place: str, digest: str) -> dict[str, Any]:
        return {"replicas": None, "replicated_shards": {place: digest}}

    assert diverged({0: shards("[0]", "a"), 1: shards("[1]", "b"), 2: shards("[0]", "a"), 3: shards("[1]", "b")}) == []
    apart = {0: shards("[0]", "a"), 1: shards("[1]", "b"), 2: shards("[0]", "x"), 3: shards("[1]", "b")}
    assert diverged(apart) == [[0], [2]]
    assert diverged({0: {"replicas": "a"}, 1: {"replicas": "a"}, 2: {"replicas": "b"}}) == [[0, 1], [2]]
    assert diverged({0: {}, 1: {}}) == [], "version 1 of a fingerprint says nothing"
