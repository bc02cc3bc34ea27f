"""The same ranks on another mesh: what is loaded is the same, what is claimed is less, and it says so in every mode."""

import json
from typing import Any

import pytest

from tests.worker_hooks.conftest import HERE, World
from worker_hooks.training.resuming.verify import rearranged

pytestmark = pytest.mark.torch
KINDS = HERE / "programs" / "kinds.py"


def attempt(world: World, name: str, ranks: int, **options: Any) -> list[dict[str, Any]]:
    """One attempt to its end; rank 0's checks before the first step, and those of replayed steps."""
    run_dir = world.new_run_dir(name, ranks)
    given = {"root": str(world.root), "out": str(world.folder / "out"), **options}
    started = world.start(KINDS, [json.dumps(given)], ranks, env={"RELUME_RUN_DIR": str(run_dir)})
    assert started.wait(120) == [-9 if options.get("die") else 0] * ranks, started.text()
    return [event for event in world.events(run_dir, 0) if event["kind"] == "verification"]


@pytest.mark.parametrize(
    ("before", "after", "ranks", "says", "exact"),
    [
        ("two_dimensional", "wide", 4, "mesh [2, 2] (dp, tp)", None),
        ("fsdp_mixed", "hybrid", 4, "now mesh [2, 2] (replicate, shard)", False),
        ("hybrid", "turned", 4, "with the ranks in other places", None),
        ("ddp", "tensor_parallel", 2, "DDP, now mesh [2] (tp)", False),
        ("tensor_parallel", "ddp", 2, "now DDP", None),
        ("fsdp_mixed", "other_dimension", 2, "shard(1) on [2]", False),
    ],
)
def test_another_mesh_of_the_same_ranks_is_resharded_and_never_a_plain_pass(
    world: World, before: str, after: str, ranks: int, says: str, exact: bool | None
) -> None:
    attempt(world, "first", ranks, kind=before, die=5, exact=exact)
    first, *later = attempt(world, "second", ranks, kind=after, exact=exact)
    checks = {check["name"]: check for check in first["checks"]}
    assert first["outcome"] == "RESHARDED"
    assert (checks["layout"]["outcome"], says in checks["layout"]["why"]) == ("RESHARDED", True), checks["layout"]
    assert {checks[name]["outcome"] for name in ("step", "parameters", "optimizer", "learning_rate")} == {"PASS"}
    assert "FAIL" not in {record["outcome"] for record in later}


def test_the_same_mesh_is_a_pass(world: World) -> None:
    attempt(world, "first", 4, kind="hybrid", die=5, exact=False)
    first, *later = attempt(world, "second", 4, kind="hybrid", exact=False)
    assert {record["outcome"] for record in (first, *later)} <= {"PASS", "DEGRADED"}
    layout = next(check for check in first["checks"] if check["name"] == "layout")
    assert (layout["outcome"], layout.get("why")) == ("PASS", None)


def test_what_an_older_checkpoint_does_not_say_is_no_difference() -> None:
    mesh = {"device": "cpu", "shape": [2], "names": None}
    now = {"buckets": {}, "meshes": [mesh], "placements": {"kinds": {}, "digest": "x"}, "mesh_ranks": "y"}
    assert rearranged({"buckets": {}, "meshes": [mesh]}, now) is None
    assert rearranged({"buckets": {}}, now) is None
    alone = {**now, "meshes": []}
    assert rearranged({"buckets": {"model": None}, "meshes": []}, alone) == "DDP, now every rank by itself"
