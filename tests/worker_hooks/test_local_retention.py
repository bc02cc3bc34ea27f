"""Which node-local checkpoints count and which stay: in the index on shared storage, and on the node, which follows."""

import shutil
import time
from pathlib import Path

import pytest
import torch

from tests.worker_hooks.local_stage import local_steps, node, shares, steps, train
from worker_hooks import Run
from worker_hooks.protocol import committing, generations, leases, minting
from worker_hooks.protocol.manifest import MANIFEST
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier, shelf
from worker_hooks.training.tiers import retention

pytestmark = pytest.mark.torch
__all__ = ["node"]


def test_the_newest_stay_in_the_index_and_the_node_follows(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 12, checkpoint_every=0, keep_local=2)
    assert local_steps(run) == [12, 10]
    retention.follow_index(node / run.name, run, 1)
    assert shares(node / run.name) == [10, 12]


def test_a_step_that_is_being_read_stays_on_the_node(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 2, checkpoint_every=0)
    with leases.reading(run / "local" / "step-00000002.g1"):
        train(tmp_path / "root", tmp_path / "nvme", 12, checkpoint_every=0)
        assert 2 in local_steps(run) and 2 in shares(node / run.name)


def test_what_a_superseded_attempt_left_goes_after_a_resume(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    left = node / run.name / "step-00000099.g1"
    shutil.copytree(node / run.name / "step-00000004.g1", left)
    shutil.copytree(run / "local" / "step-00000004.g1", run / "local" / left.name)
    (run / "local" / left.name / MANIFEST).unlink()
    train(tmp_path / "root", tmp_path / "nvme", 0)
    assert not left.exists() and not (run / "local" / left.name).exists()
    assert shares(node / run.name) == [2, 4], "what counts stays"


def test_a_superseded_attempt_removes_nothing_from_the_node(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    minting.mint(run, node="other", world_size=1, now=time.time())
    (node / run.name / "step-00000001.g1").mkdir()
    parts = node / run.name / ".trash-parts-1"  # what the newer attempt's resume reads
    parts.mkdir()
    with pytest.raises(generations.NotNewest):
        retention.follow_index(node / run.name, run, 1)
    with pytest.raises(generations.NotNewest):
        retention.clear(node / run.name, run, 1, 9)
    assert shares(node / run.name) == [1, 2, 4] and parts.exists()


def test_an_index_that_cannot_be_read_removes_nothing(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    (run / "generations" / "000001.json").write_text("{")
    (node / run.name / "step-00000001.g1").mkdir()
    with pytest.raises(OSError, match="generation"):
        retention.follow_index(node / run.name, run, 1)
    assert shares(node / run.name) == [1, 2, 4]


def test_what_was_given_up_makes_room_on_the_node_and_what_is_being_saved_stays(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    for step in (7, 8, 9):
        (node / run.name / f"step-{step:08d}.g1").mkdir()
    (run / "local" / "step-00000008.g1").mkdir()  # waits for the other ranks
    retention.follow_index(node / run.name, run, 1)
    assert shares(node / run.name) == [2, 4, 8, 9]


def test_a_superseded_attempts_local_save_never_counts(tmp_path: Path, node: Path) -> None:
    """Its share is durable on the node, its word in the index comes too late."""
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    word = (run / "local" / "step-00000004.g1" / "rank-00000.json").read_bytes()
    shutil.rmtree(run / "local" / "step-00000004.g1")
    minting.mint(run, node="other", world_size=1, now=time.time())
    late = run / "local" / "step-00000004.g1"
    late.mkdir()
    (late / "rank-00000.json").write_bytes(word)
    with pytest.raises(generations.NotNewest):
        committing.commit_folder(late, 1, now=time.time())
    assert local_steps(run) == [2]
    minting.mint(run, node="other", world_size=1, now=time.time())
    assert local_steps(run) == [2]


def test_a_run_that_is_over_leaves_nothing_on_its_nodes(tmp_path: Path, node: Path) -> None:
    """They may be somebody else's in a moment, and in memory it would stay until they boot."""
    run = train(tmp_path / "root", tmp_path / "nvme", 6, total_steps=6)
    assert generations.accepted_folders(run) == ["step-00000006.g1", "step-00000004.g1"]
    assert local_steps(run) == [] and not (node / run.name).exists()


def test_what_is_quarantined_stays_in_the_index_for_inspection(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    bad = run / "local" / "step-00000002.g1"
    generations.quarantine(bad, reason="failed verification", generation=1, now=time.time())
    train(tmp_path / "root", tmp_path / "nvme", 2, total_steps=6)
    assert [folder.name for folder in (run / "local").glob("step-*")] == [bad.name]


def test_a_run_that_is_not_over_leaves_what_the_next_attempt_may_take(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4, total_steps=6)
    assert local_steps(run) == [4, 2] and shares(node / run.name) == [2, 4]


def test_the_end_of_a_superseded_attempt_clears_nothing(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    minting.mint(run, node="other", world_size=1, now=time.time())
    with pytest.raises(generations.NotNewest):
        retention.clear(node / run.name, run, 1, 4)
    assert shares(node / run.name) == [2, 4]


@pytest.mark.parametrize(("tier", "saved"), [(LOCAL, [1]), (SHARED, [])])
def test_what_was_resumed_from_the_nodes_alone_is_saved_for_good_at_the_end(
    tmp_path: Path, node: Path, tier: Tier, saved: list[int]
) -> None:
    """Although no update came since: otherwise a run that is over would be over on its nodes only."""
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=0) as run:
        run.step(loss=1.0)
        run._attempt._saver.start_from(shelf(run.folder, tier) / "step-00000001.g1", 1)
    assert steps(generations.accepted_folders(run.folder)) == saved
