"""Training in the real loops of Lightning and transformers: with Relume as without, and killed and resumed as never
killed, to the bit."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.worker_hooks.conftest import HERE, RUN_ID, World
from worker_hooks.protocol.generations import read_rank_file

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Framework:
    program: str
    imports: tuple[str, ...]
    mine: str  # what a resumed attempt says of itself only

    def start(self, world: World, name: str, ranks: int, env: dict[str, str] | None = None, **options: Any) -> Any:
        given = {"root": str(world.folder / name), "out": str(world.folder / f"{name}.out"), **options}
        return world.start(HERE / "programs" / self.program, [json.dumps(given)], ranks, env, self.imports)

    def finish(self, world: World, name: str, ranks: int, **options: Any) -> list[dict[str, Any]]:
        """Run to a clean end; what each rank wrote."""
        started = self.start(world, name, ranks, **options)
        assert started.wait(120) == [0] * ranks, started.text()
        return [json.loads((world.folder / f"{name}.out.{rank}.json").read_text()) for rank in range(ranks)]

    def resume(
        self, world: World, whole: list[dict[str, Any]], step: int, **options: Any
    ) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
        """Killed after update `step`, which is not saved, then run to the end: what each rank wrote, and its
        verification records. A killed rank may not have written its last losses, so they are taken from `whole`."""
        ranks = len(whole)
        recorded = [{number: local(seen["losses"]) for number, seen in mine["seen"].items()} for mine in whole]
        started = self.start(world, "again", ranks, die={"rank": None, "step": step}, **options)
        assert started.wait(120) == [-9] * ranks, started.text()
        for rank, losses in enumerate(recorded):
            lines = [json.dumps({"step": int(number), "loss": loss}) + "\n" for number, loss in losses.items()]
            (world.folder / "again" / RUN_ID / "losses" / f"rank-{rank:05d}.g1.jsonl").write_text("".join(lines))
        run_dir = world.new_run_dir("second", ranks)
        ends = self.finish(world, "again", ranks, env={"RELUME_RUN_DIR": str(run_dir)}, **options)
        events = [world.events(run_dir, rank) for rank in range(ranks)]
        return ends, [[event for event in mine if event["kind"] == "verification"] for mine in events]


def local(losses: list[str]) -> str:
    """Of an update: the sum over its batches, which are divided by their number."""
    total = torch.tensor(0.0)
    for loss in losses:
        total = total + float.fromhex(loss)
    return float(total).hex()


LIGHTNING = Framework("in_lightning.py", ("lightning.pytorch",), "hooks")
HUGGING_FACE = Framework("in_huggingface.py", ("transformers", "transformers.trainer", "accelerate"), "")
BOTH = pytest.mark.parametrize("framework", [LIGHTNING, HUGGING_FACE], ids=["lightning", "huggingface"])


def assert_continues(framework: Framework, whole: dict[str, Any], again: dict[str, Any], step: int) -> None:
    """`again` did the updates from `step` on; each is what it was, and so is what is left in the end."""
    assert set(again["seen"]) == {number for number in whole["seen"] if int(number) >= step}
    assert again["seen"] == {number: whole["seen"][number] for number in again["seen"]}
    rest = {key for key in whole if key not in ("seen", framework.mine)}
    assert {key: again[key] for key in rest} == {key: whole[key] for key in rest}


def outcomes(records: list[dict[str, Any]]) -> dict[str, str]:
    (first,) = [record for record in records if record["stage"] == "before_first_step"]
    return {check["name"]: check["outcome"] for check in first["checks"]}


@BOTH
def test_in_one_process(world: World, framework: Framework) -> None:
    """Resumed within the first epoch, at its end, and within the next one, each time with an update done before."""
    whole = framework.finish(world, "plain", 1, plain=True)
    assert framework.finish(world, "with", 1) == whole
    for step in (5, 8, 11):
        attempt = World(world._server, world.folder / str(step))
        attempt.folder.mkdir()
        (again,), (records,) = framework.resume(attempt, whole, step, every=3)
        assert_continues(framework, whole[0], again, step - 1)
        replayed = range(step - 1, len(whole[0]["seen"]) + 1)
        assert [(record["step"], record["outcome"]) for record in records[1:]] == [(n, "PASS") for n in replayed]
        assert "FAIL" not in outcomes(records).values()


@BOTH
def test_in_two_processes(world: World, framework: Framework) -> None:
    """The order of the samples is known there, so nothing is in doubt."""
    whole = framework.finish(world, "plain", 2, plain=True)
    ends, records = framework.resume(world, whole, 5)
    for rank in (0, 1):
        assert_continues(framework, whole[rank], ends[rank], 5)
        assert set(outcomes(records[rank]).values()) == {"PASS"}, records[rank]


@BOTH
@pytest.mark.parametrize("ranks", [1, 2])
def test_with_a_resumable_sampler(world: World, framework: Framework, ranks: int) -> None:
    whole = framework.finish(world, "plain", ranks, plain=True, sampler="resumable", epochs=1)
    ends, records = framework.resume(world, whole, 3, sampler="resumable", epochs=1)
    for rank in range(ranks):
        assert_continues(framework, whole[rank], ends[rank], 3)
        assert set(outcomes(records[rank]).values()) == {"PASS"}


def test_what_accelerate_pads_is_in_the_ledger(world: World) -> None:
    """42 samples on two ranks in batches of 4: six batches each, 48 entries."""
    HUGGING_FACE.finish(world, "with", 2)
    run = world.folder / "with" / RUN_ID
    ledger = read_rank_file(run / "step-00000009.g1", 0).data["loaders"]["loader"]["ledger"]
    assert ledger["unit"] == "samples" and ledger["totals"]["padded"] == 2 * 6  # the third epoch goes on in the file
    assert [ledger["totals"][kind] for kind in ("repeated", "skipped", "unknown", "left_out")] == [0, 0, 0, 0]


def test_lightning_validates_once_where_it_validates_within_an_epoch(world: World) -> None:
    """A checkpoint after a validation is resumed after it: Lightning itself would count that batch twice."""
    whole = LIGHTNING.finish(world, "plain", 1, plain=True, validate_every=4, accumulate=1)
    (again,), _ = LIGHTNING.resume(world, whole, 5, validate_every=4, accumulate=1)
    assert_continues(LIGHTNING, whole[0], again, 5)
    assert again["hooks"] == whole[0]["hooks"][2:]
    assert whole[0]["hooks"][1].startswith("validated after 4")


@BOTH
def test_a_request_to_stop_is_saved_and_ends_the_attempt(world: World, framework: Framework) -> None:
    whole = framework.finish(world, "plain", 1, plain=True)
    run_dir = world.new_run_dir("first", 1)
    (stopped,) = framework.finish(world, "again", 1, stop_at=9, every=0, env={"RELUME_RUN_DIR": str(run_dir)})
    assert list(stopped["seen"]) == [str(step) for step in range(1, 10)]
    (again,) = framework.finish(world, "again", 1, every=0)
    assert_continues(framework, whole[0], again, 10)


@BOTH
@pytest.mark.parametrize(("ends", "early"), [({"enough_at": 7}, "was told to stop"), ({}, "")], ids=["early", "whole"])
def test_an_early_stop_is_said_and_a_whole_run_says_nothing(
    world: World, framework: Framework, ends: dict[str, int], early: str
) -> None:
    """Both count their updates (`max_steps`), so an end before is a fault unless somebody wanted it."""
    run_dir = world.new_run_dir("first", 1)
    framework.finish(world, "again", 1, max_steps=12, every=0, env={"RELUME_RUN_DIR": str(run_dir)}, **ends)
    (end,) = [event for event in world.events(run_dir, 0) if event.get("name") in ("finished", "stopped")]
    assert (end["name"], end["data"]["step"]) == ("finished", ends.get("enough_at", 12))
    assert early in end["data"].get("early", "") and bool(early) == ("early" in end["data"])


@pytest.mark.parametrize(("epochs", "early"), [(1, "max_epochs=1 are done"), (9, "")])
def test_lightning_ends_at_its_epochs_or_its_steps(world: World, epochs: int, early: str) -> None:
    run_dir = world.new_run_dir("first", 1)
    LIGHTNING.finish(
        world, "again", 1, max_steps=12, epochs=epochs, both=True, every=0, env={"RELUME_RUN_DIR": str(run_dir)}
    )
    (end,) = [event for event in world.events(run_dir, 0) if event.get("name") == "finished"]
    assert early in end["data"].get("early", "") and bool(early) == ("early" in end["data"])


def test_lightning_goes_on_after_a_finished_fit_when_more_epochs_are_asked_for(world: World) -> None:
    whole = LIGHTNING.finish(world, "plain", 1, plain=True)
    LIGHTNING.finish(world, "again", 1, epochs=2)
    (again,) = LIGHTNING.finish(world, "again", 1)
    assert_continues(LIGHTNING, whole[0], again, 13)
    assert again["hooks"] == whole[0]["hooks"][4:]


def test_lightning_takes_the_ranks_of_relume_run_for_what_they_are_inside_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    from worker_hooks.integrations.lightning import RelumeCallback

    for name, value in {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NAME": "train",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "RELUME_RUN_ID": "tj-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "taken away again by monkeypatch")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    trainer = Trainer(callbacks=[RelumeCallback()], devices=1, num_nodes=1, accelerator="cpu", logger=False)
    assert isinstance(trainer._accelerator_connector.cluster_environment, TorchElasticEnvironment)
