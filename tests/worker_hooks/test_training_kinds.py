"""Models and optimizers of every usual kind: stopped and resumed, they are what they would have been without."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import HERE, World
from worker_hooks.protocol.generations import accepted_folders, read_rank_file

pytestmark = pytest.mark.torch

KINDS = HERE / "programs" / "kinds.py"


def stored_keys(folder: Path) -> set[str]:
    indexes = [json.loads(path.read_text()) for path in folder.glob("rank-*.d/index.json")]
    return {key for index in indexes for key in index["tensors"]}


def finish(world: World, name: str, ranks: int, **options: Any) -> list[dict[str, Any]]:
    """Run to the end; what each rank wrote."""
    given = {"root": str(world.folder / name), "out": str(world.folder / f"{name}.out"), **options}
    started = world.start(KINDS, [json.dumps(given)], ranks)
    assert started.wait(120) == [-9 if "die" in options else 0] * ranks, started.text()
    if "die" in options:
        return finish(world, name, ranks, **{key: value for key, value in options.items() if key != "die"})
    return [json.loads((world.folder / f"{name}.out.{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("fsdp_mixed", 2),
        ("hybrid", 4),
        ("tensor_parallel", 2),
        ("two_dimensional", 4),
        ("replicated_beside_sharded", 2),
        ("compiled", 2),
    ],
)
def test_parallel_models_resume_on_the_same_mesh_to_the_bit(world: World, kind: str, ranks: int) -> None:
    whole = finish(world, "whole", ranks, kind=kind)
    again = finish(world, "again", ranks, kind=kind, die=5)
    for one, other in zip(whole, again, strict=True):
        assert "1" not in other["losses"] and "6" in other["losses"], "it did not resume"
        assert one["losses"] | other["losses"] == one["losses"]
        assert {**one, "losses": None} == {**other, "losses": None}
    (run,) = (world.folder / "again").glob("tj-*")
    folder = run / next(iter(accepted_folders(run)))
    shared = {key.removeprefix("model/") for key in stored_keys(folder) if key.startswith("model/")}
    own = {key.partition(":model/")[2] for key in stored_keys(folder) if ":model/" in key}
    assert sorted(shared | own) == whole[0]["keys"] and not any("_orig_mod" in key for key in shared | own)
    meshes = read_rank_file(folder, 0).run["layout"]["meshes"]
    assert meshes == MESHES.get(kind, [])


MESHES: dict[str, Any] = {
    "fsdp_mixed": [{"device": "cpu", "shape": [2], "names": None}],
    "hybrid": [{"device": "cpu", "shape": [2, 2], "names": ["replicate", "shard"]}],
    "tensor_parallel": [{"device": "cpu", "shape": [2], "names": ["tp"]}],
    "two_dimensional": [
        {"device": "cpu", "shape": [2, 2], "names": ["dp", "tp"]},
        {"device": "cpu", "shape": [2], "names": ["dp"]},
    ],
    "replicated_beside_sharded": [{"device": "cpu", "shape": [2], "names": None}],
}
