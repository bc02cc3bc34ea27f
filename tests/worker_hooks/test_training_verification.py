"""What is compared after a resume, and how a state that was restored wrongly is named before it trains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.conftest import World
from tests.worker_hooks.share_folder import forge
from worker_hooks import Run
from worker_hooks.protocol import generations
from worker_hooks.training.errors import VerificationFailed

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("kind", "check", "ranks"),
    [
        ("weights", "parameters", [0, 1]),
        ("lr", "learning_rate", [0, 1]),
        ("data", "data_position", [0, 1]),
        ("rng", "random_state", [1]),
    ],
)
def test_a_damaged_state_is_caught_and_named_before_the_first_step(
    killed: World, kind: str, check: str, ranks: list[int]
) -> None:
    run_dir = killed.new_run_dir("second", 2)
    started = killed.tiny(2, env={"RELUME_SABOTAGE": kind, "RELUME_RUN_DIR": str(run_dir)})
    assert started.wait() == [77, 77], started.text()
    assert f"{check} (ranks {ranks}) differ from the checkpoint" in started.text()
    for rank in (0, 1):
        events = killed.events(run_dir, rank)
        (record,) = [event for event in events if event["kind"] == "verification"]
        failed = [item["name"] for item in record["checks"] if item["outcome"] == "FAIL"]
        assert failed == ([check] if rank in ranks else [])
        assert (record["outcome"], record["stage"]) == ("FAIL" if failed else "PASS", "before_first_step")
        assert not [event for event in events if event.get("name") == "first_step"]


def test_a_sound_resume_reports_every_part_and_every_replayed_step(killed: World) -> None:
    plain = killed.finish(2, plain=True)
    for rank in (0, 1):
        record(killed, rank, dict(enumerate(plain[rank]["losses"], start=1)))
    run_dir = killed.new_run_dir("second", 2)
    killed.finish(2, env={"RELUME_RUN_DIR": str(run_dir)})
    for rank in (0, 1):
        records = [event for event in killed.events(run_dir, rank) if event["kind"] == "verification"]
        names = [item["name"] for item in records[0]["checks"]]
        assert names == [
            "step",
            "parameters",
            "optimizer",
            "learning_rate",
            "ema",
            "scheduler",
            "replicas",
            "data_position",
            "consumed",
            "data_ledger",
            "random_state",
            "layout",
        ]
        assert {record["outcome"] for record in records} == {"PASS"}
        assert [record["step"] for record in records if record["stage"] == "replay"] == list(range(9, 19))


def test_a_replayed_loss_that_differs_ends_the_run(killed: World) -> None:
    plain = killed.finish(2, plain=True)
    record(killed, 1, dict(enumerate(plain[1]["losses"], start=1)) | {10: (1.0).hex()})
    statuses = (started := killed.tiny(2)).wait()
    assert statuses[1] == 77, started.text()
    assert "rank 1's loss of replayed step 10" in started.text()
    assert not list(killed.run.glob("step-00000012.g2/manifest.json"))


def test_every_rank_gets_its_own_random_state(killed: World) -> None:
    """One rank's state for all (252 of 256 ranks were wrong once) would pass a check of rank 0 alone."""
    folder = killed.run / "step-00000008.g1"
    files = [generations.read_rank_file(folder, rank) for rank in (0, 1)]
    assert files[0].random["torch"] != files[1].random["torch"]
    forge(folder, 1, lambda data: data["random"].update(state=files[0].random["state"]))
    started = killed.tiny(2)
    assert started.wait() == [77, 77]
    assert "random_state (ranks [1])" in started.text()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("scaler", lambda state: state["scaler"].update(scale=65536.0)),  # R12
        ("scheduler", lambda state: state["scheduler"].update(last_epoch=7)),
        ("learning_rate", lambda state: state["optimizer"]["groups"][0]["settings"].update(lr=0.002)),  # R10
        ("optimizer", lambda state: state["optimizer"]["groups"][0]["settings"].update(weight_decay=0.5)),
    ],
)
def test_a_part_that_was_restored_wrongly_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: str,
    change: Callable[[dict[str, Any]], object],
) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)

    def attempt() -> Run:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
        return Run(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, root=tmp_path)

    with attempt() as run:
        run.step(loss=1.0)
    forge(run.folder / "step-00000001.g1", 0, lambda data: change(data["state"]))
    with pytest.raises(VerificationFailed) as caught, attempt():
        pytest.fail("the block must not be entered")
    assert f"{part} (ranks [0])" in capsys.readouterr().err
    assert caught.value.parts == (part,)
    assert caught.value.code == 77


def record(world: World, rank: int, losses: dict[int, str]) -> None:
    """The first attempt's own record, whole: a rank that is killed may not have written its last steps."""
    lines = [json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items()]
    (world.run / "losses" / f"rank-{rank:05d}.g1.jsonl").write_text("".join(lines))
