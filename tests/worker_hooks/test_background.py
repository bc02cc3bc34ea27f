"""What happens beside training: saves in flight, skipped ones, failing disks, the verdict of the ranks on a save."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.worker_hooks.conftest import World
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.protocol import generations, minting
from worker_hooks.protocol.tiers import LOCAL, SHARED
from worker_hooks.training.errors import CheckpointError, Superseded
from worker_hooks.training.files import writing
from worker_hooks.training.saving.background import Background, wait_until
from worker_hooks.training.saving.turns import SharedTurns, Turns

pytestmark = pytest.mark.torch
__all__ = ["run_dir"]


class Gate:
    """A disk that takes nothing until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        monkeypatch.setattr(writing, "write", self._write)

    def _write(self, descriptor: int, data: memoryview) -> int:
        self.reached.set()
        assert self.open.wait(60)
        return os.write(descriptor, data)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def records(folder: Path, state: str) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["kind"] == "checkpoint" and event["state"] == state]


# --- the thread ---------------------------------------------------------------------------------------------------


def test_jobs_go_first_and_errors_do_not_end_the_thread() -> None:
    seen: list[str] = []

    def idle() -> float:
        seen.append("idle")
        return 60.0

    def fail() -> None:
        raise RuntimeError("a defect")

    background = Background(idle, lambda error: seen.append(str(error)))
    background.put(fail)
    background.put(lambda: seen.append("job"))
    assert background.wait(30)
    background.close(30)
    assert seen.index("a defect") < seen.index("job") and "idle" in seen
    assert not background.wait(0.0) or not background._thread or not background._thread.is_alive()


def test_a_run_that_never_saves_has_no_thread(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    run = Run(root=tmp_path)
    run.step(loss=1.0)
    assert "relume-saver" not in {thread.name for thread in threading.enumerate()} - before
    run.__exit__(None, None, None)


# --- a save in flight ---------------------------------------------------------------------------------------------


def test_training_goes_on_while_a_save_is_written_and_the_next_one_is_skipped_and_counted(
    tmp_path: Path, run_dir: Path, gate: Gate
) -> None:
    model = torch.nn.Linear(4, 4)
    with Run(model=model, root=tmp_path, checkpoint_every=1) as run:
        run.step(loss=1.0)
        assert gate.reached.wait(30)
        with torch.no_grad():
            model.weight.fill_(5.0)
        run.step(loss=1.0)
        run.step(loss=1.0)
        gate.open.set()
        assert wait_until(lambda: "step-00000001.g1" in generations.accepted_folders(run.folder), 30)
        run.step(loss=1.0)
    found = {record["step"]: record["skipped"] for record in records(run_dir, "committed")}
    assert found == {1: 0, 4: 2}
    other = torch.nn.Linear(4, 4)
    shutil.rmtree(run.folder / "step-00000004.g1")
    with Run(model=other, root=tmp_path) as resumed:
        assert resumed.completed == 1
        assert not (other.weight == 5.0).any(), "what was saved is the state at the step, not what came after"


def test_a_save_that_somebody_asked_for_waits_instead(tmp_path: Path, run_dir: Path, gate: Gate) -> None:
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=1, total_steps=2) as run:
        run.step(loss=1.0)
        threading.Timer(0.2, gate.open.set).start()
        run.step(loss=1.0)  # the last step: never left out
    assert generations.accepted_folders(run.folder) == ["step-00000002.g1", "step-00000001.g1"]


def test_a_crash_of_the_users_code_does_not_lose_the_save_in_flight(tmp_path: Path, run_dir: Path, gate: Gate) -> None:
    with pytest.raises(KeyError), Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=1) as run:
        run.step(loss=1.0)
        assert gate.reached.wait(30)
        threading.Timer(0.1, gate.open.set).start()
        raise KeyError("a defect of the training script")
    assert generations.accepted_folders(run.folder) == ["step-00000001.g1"]


def test_a_share_beyond_the_memory_limit_says_that_training_waited(tmp_path: Path, run_dir: Path) -> None:
    with Run(model=torch.nn.Linear(200, 200), root=tmp_path, checkpoint_every=1, host_memory=8192) as run:
        run.step(loss=1.0)
    (record,) = records(run_dir, "committed")
    assert record["in_pieces"] is True
    with Run(model=torch.nn.Linear(200, 200), root=tmp_path) as again:
        assert again.completed == 1


def test_a_superseded_attempt_is_told_by_its_background(tmp_path: Path, run_dir: Path) -> None:
    with pytest.raises(Superseded), Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=3) as run:
        for _ in range(2):
            run.step(loss=1.0)
        minting.mint(run.folder, node="other", world_size=1, now=time.time())
        run.step(loss=1.0)
        assert wait_until(lambda: run._attempt._saver._superseded is not None, 30)
        run.step(loss=1.0)
    assert not list(run.folder.glob("step-*"))


# --- failing disks ------------------------------------------------------------------------------------------------


def failing(number: int, times: int) -> Callable[[int, memoryview], int]:
    left = [times]

    def write(descriptor: int, data: memoryview) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return os.write(descriptor, data)

    return write


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_fails_once_costs_one_save(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(writing, "write", failing(number, 1))
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=1, asynchronous=False) as run:
        run.step(loss=1.0)
        assert not list(run.folder.glob("step-*")), "what is half written makes room"
        run.step(loss=1.0)
    (failed,) = records(run_dir, "failed")
    assert failed["step"] == 1
    assert os.strerror(number) in failed["reason"] and "tensors.bin" in failed["reason"]
    assert generations.accepted_folders(run.folder) == ["step-00000002.g1"]


def test_a_rank_whose_disk_fails_costs_all_ranks_that_save_and_no_more(world: World) -> None:
    run_dir = world.new_run_dir("first", 2)
    ends = world.finish(2, full_disk={"rank": 1, "step": 4}, env={"RELUME_RUN_DIR": str(run_dir)})
    assert [end["steps"] for end in ends] == [18, 18]
    assert generations.accepted_folders(world.run)[:3] == [f"step-{step:08d}.g1" for step in (18, 16, 12)]
    told = [event for event in world.events(run_dir, 0) if event.get("state") == "failed"]
    assert [event["folder"] for event in told] == ["step-00000004.g1"]
    assert "rank-00001.d/tensors.bin" in told[0]["reason"]
    assert not (world.run / "step-00000004.g1").exists()


# --- all ranks or none --------------------------------------------------------------------------------------------


def test_the_first_rank_to_arrive_decides_for_all() -> None:
    store = dist.HashStore()
    idle = [True, True]
    ranks = [Turns(2, SharedTurns(store, "turns"), lambda rank=rank: idle[rank]) for rank in (0, 1)]  # type: ignore[misc]
    assert [rank.begin(4) for rank in ranks] == [True, True]
    ranks[0].done(4, {})
    assert not ranks[0].begin(8), "rank 1 is still writing"
    assert ranks[0].failure(4, SHARED) is None
    ranks[1].done(4, {SHARED: "the disk is full"})
    assert not ranks[1].begin(8), "what was decided for a step stays, though rank 1 is free by now"
    assert [rank.begin(12) for rank in ranks] == [True, True]
    assert [rank.failure(4, SHARED) for rank in ranks] == ["the disk is full"] * 2
    assert ranks[0].failure(4, LOCAL) is None, "each tier by itself"
    assert ranks[0].failure(12, SHARED) is None


def test_a_store_that_is_gone_costs_saves_and_nothing_else() -> None:
    class Gone:
        def compare_set(self, *_: Any) -> bytes:
            raise RuntimeError("Broken pipe")

    board = SharedTurns(dist.HashStore(), "turns")
    board._store = Gone()
    assert not Turns(2, board, lambda: True).begin(4)


def test_asynchronous_saves_of_two_ranks_are_complete_and_resume(world: World) -> None:
    plain = world.finish(2, plain=True)
    statuses = world.tiny(2, asynchronous=True, every=1, sleep_s=0.02, die={"rank": 1, "step": 11}).wait()
    assert all(statuses)
    ends = world.finish(2, asynchronous=True, every=1)
    assert [end["parameters"] for end in ends] == [end["parameters"] for end in plain]
    newest = generations.accepted_folders(world.run)[0]
    assert newest == "step-00000018.g2"
    for folder in world.run.glob("step-*"):
        ranks = [json.loads(path.read_text())["rank"] for path in folder.glob("rank-0000?.json")]
        assert sorted(ranks) == [0, 1]


def test_a_last_save_that_no_rank_could_write_is_an_error(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "write", failing(errno.EIO, 1000))
    with (
        pytest.raises(CheckpointError, match="Input/output error"),
        Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=1, asynchronous=False) as run,
    ):
        for _ in range(3):
            run.step(loss=1.0)
    assert [record["step"] for record in records(run_dir, "failed")] == [1, 2, 3]
