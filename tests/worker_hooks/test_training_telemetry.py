"""Telemetry: complete, never in the way, never a reason to fail. Checkpoints: always a reason to fail."""

import errno
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker_hooks import Run
from worker_hooks.protocol.slots import create_slots, read_slots
from worker_hooks.training import telemetry
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files import writing
from worker_hooks.training.pending import SLOTS, PendingValues

pytestmark = pytest.mark.torch


class Recorder(TorchDispatchMode):
    """Every operation torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "run_dir"
    folder.mkdir()
    create_slots(folder / "slots", 1)
    monkeypatch.setenv("RELUME_RUN_DIR", str(folder))
    for name in ("RELUME_GENERATION", "RELUME_RUN_ID", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return folder


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.25)


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "events-0.jsonl").read_text().splitlines()]


def points(run_dir: Path, name: str) -> dict[int, float]:
    found = {}
    for record in events(run_dir):
        if record["kind"] == "metrics" and record["name"] == name:
            found.update(zip(record["steps"], record["values"], strict=True))
    return found


def test_a_step_never_asks_for_a_value(tmp_path: Path, run_dir: Path) -> None:
    model, optimizer = model_and_optimizer()
    with Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=0) as run:
        with Recorder() as recorder:
            for step in range(5):
                run.step(loss=torch.tensor(float(step)), accuracy=torch.tensor([0.5]), words=step * 10)
        assert any("copy_" in name for name in recorder.seen)
        assert not [name for name in recorder.seen if "_local_scalar_dense" in name or "item" in name]
    assert points(run_dir, "loss") == {1: 0.0, 2: 1.0, 3: 2.0, 4: 3.0, 5: 4.0}
    assert points(run_dir, "words") == {1: 0.0, 2: 10.0, 3: 20.0, 4: 30.0, 5: 40.0}
    assert points(run_dir, "accuracy") == dict.fromkeys(range(1, 6), 0.5)
    assert points(run_dir, "lr") == dict.fromkeys(range(1, 6), 0.25)


def test_values_are_exact_and_may_be_not_finite(tmp_path: Path, run_dir: Path) -> None:
    with Run(root=tmp_path) as run:
        run.step(loss=torch.tensor(0.1, dtype=torch.bfloat16))
        run.step(loss=float("nan"))
        run.step(loss=torch.tensor(float("inf")))
        run.step(loss=None)
    assert points(run_dir, "loss") == {1: torch.tensor(0.1, dtype=torch.bfloat16).item(), 2: "NaN", 3: "Infinity"}
    losses = [json.loads(line) for line in next((run.folder / "losses").iterdir()).read_text().splitlines()]
    assert [item["loss"] for item in losses] == [(0.10009765625).hex(), "nan", "inf"]


def test_the_slot_follows_phase_and_step(tmp_path: Path, run_dir: Path) -> None:
    seen = []
    with Run(root=tmp_path, model=torch.nn.Linear(1, 1)) as run:
        run.step(loss=1.0)
        with run.phase("evaluation"):
            seen.append(read_slots(run_dir / "slots")[0])
        seen.append(read_slots(run_dir / "slots")[0])
    seen.append(read_slots(run_dir / "slots")[0])
    assert [(slot.phase, slot.step) for slot in seen if slot] == [("evaluation", 1), ("training", 1), ("finished", 1)]


def test_events_of_a_fresh_run(tmp_path: Path, run_dir: Path) -> None:
    model, optimizer = model_and_optimizer()
    with Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=2, total_steps=3) as run:
        for _ in range(3):
            run.step(loss=1.0)
    found = events(run_dir)
    assert [event["name"] for event in found if event["kind"] == "event"] == [
        "first_step",
        "first_new_step",
        "finished",
    ]
    (facts,) = [event for event in found if event["kind"] == "run_facts"]
    assert (facts["total_steps"], facts["parameters"], facts["max_step_before"]) == (3, 6, 0)
    saved = [event for event in found if event["kind"] == "checkpoint"]
    assert [(event["step"], event["state"]) for event in saved] == [(2, "committed"), (3, "committed")]
    assert all(event["bytes"] > 0 and event["blocked_s"] > 0 and event["durable_s"] > 0 for event in saved)


def test_a_rank_tells_its_role_and_what_its_own_work_took(tmp_path: Path, run_dir: Path) -> None:
    model, optimizer = model_and_optimizer()
    with Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=0, role="stage 1") as run:
        run.step(loss=1.0, compute_s=0.25)
        run.step(loss=1.0, compute_s=0.5)
    assert points(run_dir, "compute_s") == {1: 0.25, 2: 0.5}
    assert [event["role"] for event in events(run_dir) if event["kind"] == "run_facts"] == ["stage 1"]


def test_every_record_fits_the_wire_schema(tmp_path: Path, run_dir: Path) -> None:
    from worker_hooks.protocol.messages import Reader
    from worker_hooks.protocol.records import decode_record

    model, optimizer = model_and_optimizer()
    for _ in range(2):
        with Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=1) as run:
            run.step(loss=1.0)
    found = events(run_dir)
    assert {record["kind"] for record in found} == {"event", "metrics", "checkpoint", "verification", "run_facts"}
    for seq, record in enumerate(found, start=1):
        decode_record(Reader.of({"seq": seq, **record}, "record"))


def test_a_full_disk_under_telemetry_is_counted_and_nothing_else(tmp_path: Path, run_dir: Path) -> None:
    (run_dir / "events-0.jsonl").symlink_to("/dev/full")
    model, optimizer = model_and_optimizer()
    with Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=0) as run:
        for _ in range(10):
            run.step(loss=1.0)
    lost = run.telemetry_failures()
    assert lost["dropped"] > 0 and os.strerror(errno.ENOSPC) in lost["error"]
    assert len(list(run.folder.glob("step-*"))) == 1


def test_no_agent_and_a_vanished_run_folder_do_not_matter(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELUME_RUN_DIR", str(tmp_path / "gone"))
    with Run(root=tmp_path) as run:
        run.step(loss=1.0)
    monkeypatch.delenv("RELUME_RUN_DIR")
    with Run(root=tmp_path) as run:
        run.step(loss=1.0)
    assert run.generation == 2


def test_storage_that_takes_no_more_fails_that_save_and_training_goes_on(tmp_path: Path, run_dir: Path) -> None:
    """The limit on file sizes stands for a full disk: a real error of a real write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = torch.nn.Linear(200, 200)
    with Run(model=model, root=tmp_path, checkpoint_every=1, asynchronous=False) as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            run.step(loss=1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(run.folder.glob("step-*"))
        run.step(loss=1.0)
    assert [path.parent.name for path in run.folder.glob("*/manifest.json")] == ["step-00000002.g1"]
    records = events(run_dir)
    (failed,) = [record for record in records if record.get("state") == "failed"]
    assert (failed["step"], failed["folder"]) == (1, "step-00000001.g1")
    assert "saving step 1: " in failed["reason"] and "rank-00000.d/tensors.bin" in failed["reason"]
    assert [record["code"] for record in records if record["kind"] == "sign"] == ["checkpoint_write"]


def test_a_last_save_that_fails_is_an_error(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write", full)
    with (
        pytest.raises(CheckpointError, match=r"saving step 1: .*No space left on device: '.*tensors\.bin'"),
        Run(model=torch.nn.Linear(2, 2), root=tmp_path) as run,
    ):
        run.step(loss=1.0)


def test_an_exception_that_leaves_the_block_saves_nothing(tmp_path: Path, run_dir: Path) -> None:
    model, optimizer = model_and_optimizer()
    with pytest.raises(KeyError), Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=0) as run:
        run.step(loss=1.0)
        raise KeyError("a defect of the training script")
    assert not list(run.folder.glob("step-*"))
    slot = read_slots(run_dir / "slots")[0]
    assert slot is not None and slot.phase == "failed"
    assert [event["data"]["reason"] for event in events(run_dir) if event.get("name") == "stopped"] == [
        "KeyError: 'a defect of the training script'"
    ]
    assert points(run_dir, "loss") == {1: 1.0}


def test_steps_that_were_done_before_and_lost_are_not_new(tmp_path: Path, run_dir: Path) -> None:
    """Killed before its first checkpoint: the second attempt starts from nothing and repeats three steps."""
    model, optimizer = model_and_optimizer()
    with pytest.raises(KeyError), Run(model=model, optimizer=optimizer, root=tmp_path) as run:
        for _ in range(3):
            run.step(loss=1.0)
        raise KeyError("the end")
    with Run(model=model, optimizer=optimizer, root=tmp_path) as run:
        for _ in range(5):
            run.step(loss=2.0)
    new = [event["data"]["step"] for event in events(run_dir) if event.get("name") == "first_new_step"]
    assert new == [1, 4]


def test_a_writer_stuck_in_a_write_holds_nobody_up(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that does not answer: a FIFO that nobody reads."""
    monkeypatch.setattr(telemetry, "FLUSH_PATIENCE_S", 0.05)
    monkeypatch.setattr(telemetry, "CLOSE_PATIENCE_S", 0.05)
    os.mkfifo(run_dir / "events-0.jsonl")
    model, optimizer = model_and_optimizer()
    with Run(model=model, optimizer=optimizer, root=tmp_path, checkpoint_every=5) as run:
        run.step(loss=1.0)
        time.sleep(2 * telemetry.FLUSH_S)
        for _ in range(9):
            run.step(loss=1.0)
    assert run.telemetry_failures()["dropped"] > 0
    assert len(list(run.folder.glob("step-*/manifest.json"))) == 2
    with (run_dir / "events-0.jsonl").open("rb", buffering=0) as reader:  # lets the thread end before the next test
        reader.read(1)


def test_a_forgotten_restore_is_an_error_not_a_fresh_start(tmp_path: Path, run_dir: Path) -> None:
    model, optimizer = model_and_optimizer()
    run = Run(root=tmp_path)
    run.track(model=model, optimizer=optimizer)
    with pytest.raises(CheckpointError, match=r"run\.restore\(\)"):
        run.step(loss=1.0)
    run.__exit__(CheckpointError, CheckpointError("end"), None)


def test_a_device_far_behind_costs_points_and_no_wait() -> None:
    pending = PendingValues()
    for step in range(SLOTS + 5):
        pending.put(step, {"loss": torch.tensor(1.0)})
    assert pending.dropped == 5
    arrived = list(pending.take())
    assert len(arrived) == SLOTS + 5
    assert [point.step for point in arrived if "loss" not in point.values] == list(range(SLOTS, SLOTS + 5))


def test_a_value_that_is_no_number_is_dropped(tmp_path: Path, run_dir: Path) -> None:
    with Run(root=tmp_path) as run:
        run.step(loss=torch.ones(3), name="text")
        run.step(loss=2.0)
    assert points(run_dir, "loss") == {2: 2.0}
