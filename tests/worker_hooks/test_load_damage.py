"""No byte of a checkpoint is trusted unread: each file of it damaged in each way, on one rank and on several.

The program asserts by itself (`programs/load_matrix.py`): the older checkpoint is loaded whole, on all ranks, the
reason names the file, an outage and another model accuse nothing, and a fresh start keeps the values it begins with.
"""

import json

import pytest

from tests.worker_hooks.conftest import HERE, World
from tests.worker_hooks.share_folder import as_version_1

pytestmark = pytest.mark.torch

MATRIX = HERE / "programs" / "load_matrix.py"


def start(world: World, ranks: int, do: str, kind: str, seed: int = 0, every: int = 1) -> None:
    places = {"root": str(world.folder / "saved"), "out": str(world.folder / "out")}
    started = world.start(MATRIX, [json.dumps({"do": do, "kind": kind, "seed": seed, "every": every, **places})], ranks)
    assert started.wait(120) == [0] * ranks, started.text()


def save(world: World, ranks: int, kind: str, version: int) -> None:
    start(world, ranks, "save", kind)
    for folder in (world.folder / "saved").glob("*/step-*") if version == 1 else ():
        as_version_1(folder, ranks)


def cases(world: World, ranks: int) -> set[int]:
    return {int((world.folder / f"out.{rank}.cases").read_text()) for rank in range(ranks)}


@pytest.mark.parametrize("version", [2, 1])
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 1), ("ddp", 2), ("fsdp", 2)])
def test_every_damage_is_found_by_all_ranks(world: World, kind: str, ranks: int, version: int) -> None:
    save(world, ranks, kind, version)
    start(world, ranks, "load", kind, version)  # an odd seed: into an optimizer that has its state
    (found,) = cases(world, ranks)
    assert found > 20 * ranks


@pytest.mark.parametrize("version", [2, 1])
def test_every_damage_is_found_by_other_numbers_of_ranks(world: World, version: int) -> None:
    """World size 4, loaded by 2, by 3 and by 1: regions of chunks, and shares that are no rank's own."""
    save(world, 4, "fsdp", version)
    for ranks in (2, 3, 1) if version == 2 else (3,):
        start(world, ranks, "load", "fsdp", ranks, every=3)
        (found,) = cases(world, ranks)
        assert found > 30
