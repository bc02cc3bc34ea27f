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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["resumable", "distributed"])
def test_augmentation_resumes_to_the_bit_in_any_number_of_workers(world: World, sampler: str, workers: int) -> None:
    """Python's, numpy's and torch's numbers; killed in the second epoch. The plain loop has no workers."""
    options = {"sampler": sampler, "augment": "per_sample"}
    plain = world.finish(2, plain=True, **options)
    assert all(world.tiny(2, die={"rank": 1, "step": 13}, workers=workers, **options).wait())
    run_dir = world.new_run_dir("second", 2)
    resumed = world.finish(2, workers=workers, env={"RELUME_RUN_DIR": str(run_dir)}, **options)
    assert curves(resumed) == curves(plain)
    (record, *_) = [event for event in world.events(run_dir, 1) if event["kind"] == "verification"]
    assert record["outcome"] == "PASS"


@pytest.mark.parametrize(("workers", "outcome"), [(0, "PASS"), (2, "DEGRADED")])
def test_augmentation_with_the_processs_numbers_is_exact_without_workers_only(
    world: World, workers: int, outcome: str
) -> None:
    options = {"augment": "process", "workers": workers, "total": 14}
    plain = world.finish(1, plain=True, **options)
    assert all(world.tiny(1, die={"rank": 0, "step": 13}, **options).wait())
    run_dir = world.new_run_dir("second", 1)
    resumed = world.finish(1, env={"RELUME_RUN_DIR": str(run_dir)}, exact=not workers, **options)
    (record, *_) = [event for event in world.events(run_dir, 0) if event["kind"] == "verification"]
    assert record["outcome"] == outcome
    degraded = [check["actual"] for check in record["checks"] if check["outcome"] == "DEGRADED"]
    if workers:
        assert len(degraded) == 1 and "wrap it in PerSampleRandom" in degraded[0]
    else:
        assert curves(resumed) == curves(plain) and not degraded


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
