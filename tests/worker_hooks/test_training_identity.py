"""The kept curve is the same to the bit: without Run, with Run, and after a killed rank and a resume."""

import json
from typing import Any

import pytest

from tests.worker_hooks.conftest import EXAMPLES, World

pytestmark = pytest.mark.torch

KEYS = ("losses", "parameters", "buffers", "average", "lr", "next_random")


def curves(ends: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: end[key] for key in KEYS} for end in ends]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_killed_and_resumed_equals_uninterrupted_equals_plain(world: World, ranks: int, tmp_path: Any) -> None:
    plain = world.finish(ranks, plain=True, root=None)
    uninterrupted = world.finish(ranks, root=str(tmp_path / "reference"), env={"RELUME_CHECKPOINT_ROOT": "unused"})
    for rank, end in enumerate(uninterrupted):
        end["losses"] = kept(tmp_path / "reference", rank)
    killed = world.tiny(ranks, die={"rank": ranks - 1, "step": 11})
    statuses = killed.wait()
    assert statuses[-1] == -9 and all(statuses), killed.text()
    resumed = world.finish(ranks)
    assert {end["generation"] for end in resumed} == {2}
    assert len(plain[0]["losses"]) == (15 if ranks == 4 else 18)
    assert curves(uninterrupted) == curves(plain)
    assert curves(resumed) == curves(plain)


def kept(root: Any, rank: int) -> list[str]:
    from tests.worker_hooks.conftest import RUN_ID
    from worker_hooks.protocol.losses import read_losses

    return list(read_losses(root / RUN_ID, rank).values())


def test_three_attempts_in_one_epoch_and_one_at_an_epochs_end(world: World) -> None:
    """The position is absolute (two restarts within an epoch), and an epoch's end is not its beginning."""
    plain = world.finish(2, plain=True)
    for step in (6, 9, 10, 13):
        assert all(world.tiny(2, every=1, die={"rank": 0, "step": step}).wait())
    assert curves(world.finish(2, every=1)) == curves(plain)


@pytest.mark.parametrize(
    "variant",
    [
        {"sampler": "distributed"},
        {"sampler": "shuffle"},
        {"optimizer": "sgd", "batch_norm": False},
        {"accumulate": 2, "total": 8, "every": 3},
        {"wrap": "none"},
        {"wrap": "fsdp", "batch_norm": False},
    ],
    ids=lambda variant: "-".join(str(value) for value in variant.values()),
)
def test_other_kinds_of_training_resume_to_the_bit(world: World, variant: dict[str, Any]) -> None:
    plain = world.finish(2, plain=True, **variant)
    # Without DDP nothing tells a rank that the other is gone.
    who = None if variant.get("wrap") == "none" else 1
    assert all(world.tiny(2, die={"rank": who, "step": 7}, **variant).wait())
    assert curves(world.finish(2, **variant)) == curves(plain)


def test_the_gpt_example_equals_its_plain_loop(world: World) -> None:
    size = ["--epochs", "1", "--samples", "96", "--batch", "2", "--width", "64", "--layers", "2", "--context", "64"]
    outs = {}
    for name, more in (("plain_loop.py", []), ("gpt.py", ["--root", str(world.root), "--checkpoint-every", "5"])):
        report = world.folder / f"{name}.json"
        started = world.start(EXAMPLES / name, [*size, *more, "--report", str(report)], 4)
        assert started.wait() == [0] * 4, started.text()
        outs[name] = json.loads(report.read_text())
    keys = ("steps", "parameters_digest", "losses_digest", "corpus_digest")
    assert outs["plain_loop.py"]["steps"] == 12
    assert [outs["gpt.py"][key] for key in keys] == [outs["plain_loop.py"][key] for key in keys]
