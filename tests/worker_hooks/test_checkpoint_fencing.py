"""Two attempts of one training job alive at once: only the newer one's commits count."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.worker_hooks.conftest import World
from worker_hooks import Run
from worker_hooks.protocol import committing, generations, minting
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.saving import commit, retention

pytestmark = pytest.mark.torch

# Commits one complete folder, and stops itself where a real writer can be stopped: after its look at the token and
# before its rename.
STOPPED_WRITER = """
import os, signal, sys
from pathlib import Path
from worker_hooks.protocol import committing
rename = committing.replace_file
def stopped(path, data):
    if path.name == "manifest.json":
        os.kill(os.getpid(), signal.SIGSTOP)
    rename(path, data)
committing.replace_file = stopped
committing.commit_folder(Path(sys.argv[1]), 1, now=1.0)
"""


def wait_until(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def test_a_complete_folder_that_nobody_committed_is_committed_by_the_successor(world: World) -> None:
    started = world.tiny(2, die_before_commit={"rank": 0})
    assert started.wait()[0] == -9, started.text()
    folder = world.run / "step-00000004.g1"
    assert not (folder / "manifest.json").exists() and (folder / "rank-00001.json").exists()
    run_dir = world.new_run_dir("second", 2)
    world.finish(2, env={"RELUME_RUN_DIR": str(run_dir)})
    (loaded,) = [event for event in world.events(run_dir, 0) if event.get("name") == "loaded"]
    assert loaded["data"] == {"step": 4, "folder": folder.name}


def test_a_writer_stopped_between_its_look_and_its_rename_commits_nothing_that_counts(world: World) -> None:
    started = world.tiny(1, die_before_commit={"rank": 0})
    assert started.wait() == [-9]
    folder = world.run / "step-00000004.g1"
    writer = subprocess.Popen([sys.executable, "-c", STOPPED_WRITER, str(folder)])
    try:
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        # The successor starts meanwhile, from a folder that is incomplete for it: it never sees this one.
        hidden = folder.with_name("elsewhere")
        folder.rename(hidden)
        world.finish(1, total=2)
        hidden.rename(folder)
    finally:
        os.kill(writer.pid, signal.SIGCONT)
    assert writer.wait(timeout=30) == 0
    assert (folder / "manifest.json").exists()
    assert folder.name not in generations.accepted_folders(world.run)
    run_dir = world.new_run_dir("third", 1)
    world.finish(1, env={"RELUME_RUN_DIR": str(run_dir)})
    (loaded,) = [event for event in world.events(run_dir, 0) if event.get("name") == "loaded"]
    assert loaded["data"]["folder"] == "step-00000002.g2"
    assert not folder.exists(), "what a superseded writer left is cleared away after the next commit"


def test_a_superseded_attempt_exits_76_and_commits_nothing_more(world: World) -> None:
    """Also where the training loop swallows every Exception."""
    go, arrived = world.folder / "go", world.folder / "arrived"
    wait_at = {"step": 6, "go": str(go), "arrived": str(arrived)}
    first = world.tiny(2, wait_at=wait_at, swallow=True)
    for rank in (0, 1):
        wait_until(world.folder / f"arrived.{rank}")
    minted = minting.mint(world.run, node="other", world_size=2, now=time.time())
    assert (minted.generation, minted.accepted) == (2, ("step-00000004.g1",))
    go.touch()
    assert first.wait() == [76, 76], first.text()
    assert "generation 1 was superseded by generation 2" in first.text()
    assert [folder.name for folder in world.run.glob("step-*")] == ["step-00000004.g1"]


def test_the_agents_word_ends_a_superseded_rank_at_the_next_step(world: World) -> None:
    run_dir = world.new_run_dir("first", 1)
    (run_dir / "control.json").write_text('{"stop": null, "superseded": true}')
    started = world.tiny(1, every=0, total=100000, epochs=100000, env={"RELUME_RUN_DIR": str(run_dir)})
    assert started.wait() == [76], started.text()


def test_a_stop_request_ends_every_rank_at_the_same_step_with_a_checkpoint(world: World) -> None:
    """The ranks see the request at different moments: they agree on a step, and save there."""
    run_dir = world.new_run_dir("first", 2)
    (run_dir / "control.json").write_text('{"stop": "the user asked", "superseded": false}')
    ends = world.finish(2, total=100000, epochs=100000, env={"RELUME_RUN_DIR": str(run_dir)})
    steps = {end["steps"] for end in ends}
    assert len(steps) == 1
    stopped = [event for event in world.events(run_dir, 0) if event.get("name") == "stopped"]
    assert stopped[0]["data"]["reason"] == "the user asked"
    assert generations.accepted_folders(world.run)[0] == f"step-{ends[0]['steps']:08d}.g1"


def test_a_rank_file_that_comes_in_while_rank_0_looks_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit found the folder incomplete, a moment later it is complete: that is no reason to quarantine it."""
    real = committing.commit_folder
    answers = [None]

    def late(folder: Path, generation: int, *, now: float) -> object:
        return answers.pop() if answers else real(folder, generation, now=now)

    monkeypatch.setattr(committing, "commit_folder", late)
    with Run(model=torch.nn.Linear(2, 2), root=tmp_path, checkpoint_every=1, asynchronous=False) as run:
        run.step(loss=1.0)
        run.step(loss=1.0)
    assert not answers
    assert not list(run.folder.glob("*/quarantine.json"))
    assert generations.accepted_folders(run.folder) == ["step-00000002.g1", "step-00000001.g1"]


def test_a_rank_that_never_writes_its_part_is_an_error_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMMIT_DEADLINE_S", 0.0)
    monkeypatch.setattr(generations, "missing_ranks", lambda *_: [3])
    monkeypatch.setattr(committing, "commit_folder", lambda *_, **__: None)
    with (
        pytest.raises(CheckpointError, match=r"step-00000001\.g1: nothing from ranks \[3\] after 0 s"),
        Run(model=torch.nn.Linear(2, 2), root=tmp_path, checkpoint_every=1) as run,
    ):
        run.step(loss=1.0)


def test_a_superseded_generation_prunes_nothing(world: World) -> None:
    world.finish(1, total=12, every=2)
    before = sorted(folder.name for folder in world.run.glob("step-*"))
    minting.mint(world.run, node="other", world_size=1, now=time.time())
    with pytest.raises(generations.NotNewest):
        retention.prune(world.run, 1, keep=1, protected=())
    assert sorted(folder.name for folder in world.run.glob("step-*")) == before
