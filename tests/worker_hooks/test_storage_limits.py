"""Real file systems that fill up, reach a quota or become read-only, in the middle of a run and at its load: training
goes on, the newest intact checkpoint is found, nothing good is deleted, and the message names the file."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import RUN_ID, ForkServer, Ranks, World
from tests.worker_hooks.storage_stage import Disk, disk, limited_kinds
from tests.worker_hooks.test_checkpoint_fencing import wait_until
from tests.worker_hooks.test_checkpoint_kills import newest_intact
from tests.worker_hooks.test_training_identity import curves

pytestmark = pytest.mark.torch

JOB: dict[str, Any] = {"total": 12, "every": 2}


@pytest.fixture(scope="module")
def plain(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return curves(World(fork_server, tmp_path_factory.mktemp("plain")).finish(2, plain=True, **JOB))


class OnDisk:
    """A run of two ranks whose checkpoint root lies on that disk."""

    def __init__(self, made: Disk, folder: Path) -> None:
        self.disk, self.world = made, World(made.server, folder)
        self._started: Ranks | None = None

    @property
    def run(self) -> Path:
        return self.disk.seen / "root" / RUN_ID

    def until(self, step: int) -> None:
        """Begin, and stand still after that update."""
        self._run_dir = self.world.new_run_dir(f"at{step}", 2)
        go, arrived = self.world.folder / "go", self.world.folder / "arrived"
        wait_at = {"step": step, "go": str(go), "arrived": str(arrived)}
        self._started = self._start(wait_at=wait_at, env={"RELUME_RUN_DIR": str(self._run_dir)})
        for rank in (0, 1):
            wait_until(Path(f"{arrived}.{rank}"))

    def go_on(self) -> tuple[list[int], str]:
        """To the end: exit codes, and what was printed."""
        assert self._started is not None
        (self.world.folder / "go").touch()
        return self._started.wait(), self._started.text()

    def kill(self) -> None:
        assert self._started is not None
        for pid in self._started.pids:
            os.kill(pid, signal.SIGKILL)
        self._started.wait()

    def failed_saves(self) -> list[dict[str, Any]]:
        return [event for event in self.world.events(self._run_dir, 0) if event.get("state") == "failed"]

    def again(self) -> tuple[list[int], str]:
        started = self._start()
        return started.wait(), started.text()

    def ends(self) -> list[dict[str, Any]]:
        ends = [json.loads((self.world.folder / f"out.{rank}.json").read_text()) for rank in (0, 1)]
        return [{key: end[key] for key in ("parameters", "buffers", "average", "lr", "next_random")} for end in ends]

    def _start(self, env: dict[str, str] | None = None, **more: Any) -> Ranks:
        return self.world.tiny(2, root=str(self.disk.folder / "root"), env=env, **JOB, **more)


def without_losses(plain: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What could not be written of the losses is gone."""
    return [{key: value for key, value in end.items() if key != "losses"} for end in plain]


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[OnDisk]:
    with disk(tmp_path, "ext4") as made:
        yield OnDisk(made, tmp_path)


@pytest.mark.parametrize("kind", limited_kinds())
def test_a_disk_without_room_costs_saves_and_nothing_else(
    tmp_path: Path, kind: str, plain: list[dict[str, Any]]
) -> None:
    with disk(tmp_path, kind) as made:
        run = OnDisk(made, tmp_path)
        run.until(7)
        assert newest_intact(run.run) == 6
        why = made.fill()
        statuses, text = run.go_on()
        assert statuses == [1, 1] and why in text and f"step-{12:08d}" in text, text
        assert [event["step"] for event in run.failed_saves()] == [8, 10, 12]
        assert all(why in event["reason"] and "step-" in event["reason"] for event in run.failed_saves())
        assert newest_intact(run.run) == 6, "what was saved before is whole"
        made.make_room()
        statuses, text = run.again()
        assert statuses == [0, 0], text
        assert newest_intact(run.run) == 12
        assert run.ends() == without_losses(plain)


def test_a_file_system_that_goes_read_only_under_a_run(ext4: OnDisk, plain: list[dict[str, Any]]) -> None:
    """Training ends its steps; the last save is an error. Nothing can begin there until it is repaired."""
    ext4.until(7)
    ext4.disk.fail()
    statuses, text = ext4.go_on()
    assert statuses == [1, 1] and "Read-only file system" in text and f"step-{12:08d}" in text, text
    assert [event["step"] for event in ext4.failed_saves()] == [8, 10, 12]
    assert newest_intact(ext4.run) == 6
    refused(ext4)
    ext4.disk.repair()
    statuses, text = ext4.again()
    assert statuses == [0, 0], text
    assert ext4.ends() == without_losses(plain)


def test_a_file_system_that_is_read_only_at_the_load(ext4: OnDisk, plain: list[dict[str, Any]]) -> None:
    """No attempt begins: it could not take the token. Afterwards it is as if nobody had tried."""
    ext4.until(7)
    ext4.kill()
    ext4.disk.remount("ro")
    refused(ext4)
    ext4.disk.remount("rw")
    statuses, text = ext4.again()
    assert statuses == [0, 0], text
    assert newest_intact(ext4.run) == 12
    assert ext4.ends() == without_losses(plain)


def refused(run: OnDisk) -> None:
    before = sorted(str(path) for path in run.run.rglob("*"))
    statuses, text = run.again()
    assert all(statuses) and f"Read-only file system: '{run.disk.folder}/root/{RUN_ID}" in text, text
    assert sorted(str(path) for path in run.run.rglob("*")) == before
