"""Resume cases of public reports about the order of things on disk, with relatives of each: R22 (a pointer and a
removal before the data are durable), R30 (a resume that needs its predecessor's last words), R34 (too few kept)."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.conftest import RUN_ID, World
from tests.worker_hooks.resume_stage import bits, objects, update
from worker_hooks import Run
from worker_hooks.protocol import committing
from worker_hooks.protocol.manifest import VERIFIED, parse_folder
from worker_hooks.training.files import writing

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELUME_RUN_ID", RUN_ID)


def steps_in(run: Path) -> set[int]:
    return {place[0] for path in run.glob("step-*") if (place := parse_folder(path.name))}


def resumed_at(root: Path) -> int:
    with Run(root=root, checkpoint_every=0, **objects()) as run:
        return run.completed


class Stall:
    """Storage that takes nothing more of step 3: its data, or the rename that commits it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        write, replace = writing.write, committing.replace_file

        def stalled_write(descriptor: int, data: memoryview) -> int:
            self._wait("step-00000003" in str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            return write(descriptor, data)

        def stalled_commit(path: Path, data: bytes) -> None:
            self._wait(path.parent.name.startswith("step-00000003"))
            replace(path, data)

        if where == "data":
            monkeypatch.setattr(writing, "write", stalled_write)
        else:
            monkeypatch.setattr(committing, "replace_file", stalled_commit)

    def _wait(self, mine: bool) -> None:
        if mine:
            self.reached.set()
            assert self._open.wait(60)

    def end(self) -> None:
        self._open.set()


@pytest.fixture(params=["data", "commit"])
def stall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    made = Stall(monkeypatch, request.param)
    yield made
    made.end()


@pytest.mark.parametrize("keep", [1, 2])
def test_nothing_moves_to_a_save_that_is_not_durable(tmp_path: Path, stall: Stall, keep: int) -> None:
    """R22: what lies on disk while step 3 is in flight is what a kill would leave."""
    tracked = objects()
    with Run(root=tmp_path / "root", checkpoint_every=1, keep=keep, **tracked) as run:
        for step in (1, 2, 3):
            run.step(loss=update(tracked))
            if step < 3:
                wait_for(run.folder / f"step-{step:08d}.g1" / "manifest.json")
        wait_for(run.folder / "latest", "step-00000002.g1\n")
        assert stall.reached.wait(30)
        shutil.copytree(tmp_path / "root", tmp_path / "killed")
        stall.end()
    left = tmp_path / "killed" / run.folder.name
    assert (left / "latest").read_text().startswith("step-00000002")
    assert {2} <= steps_in(left) and not (left / "step-00000003.g1" / "manifest.json").exists()
    # A whole folder that nobody committed yet is committed by the next attempt; half of one is not.
    assert resumed_at(tmp_path / "killed") == (3 if (left / "step-00000003.g1" / "rank-00000.json").exists() else 2)
    assert resumed_at(tmp_path / "root") == 3


@pytest.mark.parametrize(("end", "step"), [("killed", 4), ("told to end", 4), ("finished", 5)])
def test_what_is_on_disk_decides_whatever_ended_the_run(world: World, end: str, step: int) -> None:
    """R30: a node that fails runs no handler. No last word is needed, and the run keeps its id."""
    if end == "killed":
        assert all(world.tiny(2, every=2, die={"rank": None, "step": 5}).wait())
    elif end == "told to end":
        go, arrived = world.folder / "go", world.folder / "arrived"
        ranks = world.tiny(2, every=2, wait_at={"step": 5, "go": str(go), "arrived": str(arrived)})
        for rank in (0, 1):
            wait_for(Path(f"{arrived}.{rank}"))
        for pid in ranks.pids:
            os.kill(pid, signal.SIGTERM)
        assert all(ranks.wait())
    else:
        world.finish(2, every=2, total=5)
    run_dir = world.new_run_dir("second", 2)
    world.finish(2, every=2, total=8, env={"RELUME_RUN_DIR": str(run_dir)})
    (loaded,) = [event for event in world.events(run_dir, 0) if event.get("name") == "loaded"]
    assert loaded["data"]["step"] == step
    assert [path.name for path in world.root.iterdir()] == [RUN_ID]


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_two_that_were_read_back_stay_whatever_is_kept(tmp_path: Path, keep: int) -> None:
    """R34: the newest turn out bad, one after the other, and there is still one to go back to."""
    tracked, states = objects(), {}
    with Run(root=tmp_path, checkpoint_every=1, keep=keep, asynchronous=False, **tracked) as run:
        for step in range(1, 6):
            run.step(loss=update(tracked))
            states[step] = bits(tracked)
            wait_for(run.folder / f"step-{step:08d}.g1" / VERIFIED)
    # Step 5 was not read back yet when the others were looked through.
    assert steps_in(run.folder) == set(range(6 - max(keep, 3), 6))
    data = run.folder / "step-00000005.g1" / "rank-00000.d" / "tensors.bin"
    os.truncate(data, data.stat().st_size - 1)
    again = objects()
    with Run(root=tmp_path, checkpoint_every=0, **again) as run:
        assert run.completed == 4 and bits(again) == states[4]


def wait_for(path: Path, text: str | None = None) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or text not in (None, path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)
