"""`relume checkpoints` on what the real Lightning and the real Trainer of transformers write."""

from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import World
from tests.worker_hooks.test_in_frameworks import HUGGING_FACE, LIGHTNING, assert_continues
from worker_hooks.cli import checkpoints_verify
from worker_hooks.cli.checkpoints_list import listing
from worker_hooks.cli.checkpoints_places import look

pytestmark = pytest.mark.torch
NOW = 1_000_000.0


def foreign(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = listing(directory, NOW)["foreign"]
    assert found["alarms"] == []
    return found


def test_lightnings_own(world: World) -> None:
    LIGHTNING.finish(world, "own", 1, plain=True, checkpointing=True)
    found = foreign(world.folder / "own" / "checkpoints")
    (item,) = found["checkpoints"]
    assert (item["kind"], item["step"], item["step_from"], item["usable"]) == ("Lightning", 18, "its content", True)
    assert item["contents"]["present"] == ["model", "optimizer", "scheduler", "step"]
    assert item["contents"]["lacks"] == ["scaler", "rng", "rng of each rank", "data position"]
    assert found["resume"]["path"] == item["path"]
    checked = checkpoints_verify.verification(
        look(world.folder / "own" / "checkpoints"), everything=False, limit=None, progress=False
    )
    assert [entry["problems"] for entry in checked["checkpoints"]] == [[]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainers_own(world: World, ranks: int) -> None:
    HUGGING_FACE.finish(world, "own", ranks, plain=True, save="steps")
    found = foreign(world.folder / "own" / "hf")
    steps = [5, 10, 15, 18] if ranks == 1 else [5, 9]
    assert sorted(item["step"] for item in found["checkpoints"]) == steps
    assert found["resume"]["step"] == steps[-1]
    for item in found["checkpoints"]:
        assert (item["kind"], item["usable"], item["problems"]) == ("Hugging Face Trainer", True, [])
        assert item["step_from"] == "trainer_state.json"
        assert item["contents"]["lacks"] == ["scaler", *(["rng of each rank"] if ranks == 1 else []), "data position"]


def test_what_a_bit_less_says(world: World) -> None:
    HUGGING_FACE.finish(world, "own", 1, plain=True, save="steps")
    folder = world.folder / "own" / "hf" / "checkpoint-18"
    (model,) = folder.glob("*.safetensors")
    model.write_bytes(model.read_bytes()[:-1])
    (item,) = [item for item in foreign(world.folder / "own" / "hf")["checkpoints"] if item["step"] == 18]
    assert not item["usable"] and model.name in item["problems"][0]


def test_their_checkpoints_beside_ours_change_nothing(world: World) -> None:
    """Ours holds the last state, theirs may put the best model into the trained one in the end."""
    whole = HUGGING_FACE.finish(world, "plain", 1, plain=True, save="steps")
    (again,), _ = HUGGING_FACE.resume(world, whole, 8, every=3, save="steps")
    assert_continues(HUGGING_FACE, whole[0], again, 7)
