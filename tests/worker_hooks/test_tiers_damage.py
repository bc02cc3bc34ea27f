"""Resuming from shares on nodes of which some are damaged: a bad copy costs that copy only, and is named."""

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from tests.worker_hooks.local_stage import node, train
from tests.worker_hooks.test_training_telemetry import events, run_dir
from tests.worker_hooks.tiers_stage import Cluster, cluster, replicated, same_as_uninterrupted
from worker_hooks import Run
from worker_hooks.protocol.committing import commit_complete
from worker_hooks.training.files import reading

pytestmark = pytest.mark.torch
__all__ = ["cluster", "node", "replicated", "run_dir"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("cluster", "file"),
    [
        ("ddp", "rank-00001.d/tensors.bin"),
        ("ddp", "rank-00001.d/index.json"),
        ("ddp", "rank-00001.json"),
        ("fsdp", "rank-00001.d/tensors.bin"),
    ],
    indirect=["cluster"],
)
def test_a_flipped_bit_on_a_node_costs_that_copy_only(cluster: Cluster, file: str) -> None:
    """The same step from the partner's copy; the bad one is never used again."""
    cluster.killed(peer=True)
    folder = cluster.share(2, 10, 1).parent
    flip(folder / file)
    resumed = cluster.resumed(peer=True)
    assert resumed.step == 10
    told = resumed.signs("checkpoint_copy")
    assert [text for text in told if text.startswith("step-00000010.g1: the share of rank 1 on gpu2: ")] == told
    assert len(told) == 1 and file in told[0] and "does not match its digest" in told[0]
    assert not list(cluster.world.run.glob("**/quarantine.json")), "the checkpoint is good"
    same_as_uninterrupted(cluster, resumed)


def test_a_flipped_bit_in_the_only_copy_on_nodes_and_a_good_one_on_shared_storage(cluster: Cluster) -> None:
    """Step 8 was saved to both: the same bytes."""
    cluster.killed(die={"rank": None, "step": 9})
    folder = cluster.share(2, 8, 1).parent
    flip(folder / "rank-00001.d" / "tensors.bin")
    resumed = cluster.resumed()
    assert resumed.step == 8
    assert resumed.places == [{"local": 1, "shared": 1}, {}], "rank 1 has nothing good on its node"
    assert (folder / "rank-00001.json.bad").exists() or not folder.exists()
    same_as_uninterrupted(cluster, resumed)


def test_damage_on_shared_storage_and_good_copies_on_the_nodes(replicated: Cluster) -> None:
    """Nodes come first, so nobody reads it; where a node has nothing, the damage is found and set aside."""
    replicated.killed(die={"rank": None, "step": 9}, peer=True)
    flip(replicated.world.run / "step-00000008.g1" / "rank-00000.d" / "tensors.bin")
    shutil.rmtree(replicated.disk(2))
    resumed = replicated.resumed(peer=True)
    assert resumed.step == 8 and resumed.places == [{"local": 2}, {"peer": 2}]
    reason = json.loads((replicated.world.run / "step-00000008.g1" / "quarantine.json").read_text())["reason"]
    assert reason == "rank-00000.d/tensors.bin does not match its digest"
    same_as_uninterrupted(replicated, resumed)


def test_a_nodes_disk_that_does_not_read_is_no_outage_of_the_storage(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process: the same step was saved to shared storage too."""
    train(tmp_path / "root", tmp_path / "nvme", 4)
    read_into = reading.read_into

    def broken(descriptor: int, views: list[memoryview], start: int, path: Path) -> None:
        if path.is_relative_to(node):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        read_into(descriptor, views, start, path)

    monkeypatch.setattr(reading, "read_into", broken)
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path / "root", local=node, local_every=2) as run:
        assert run.completed == 4
    (told,) = [event["raw"] for event in events(run_dir) if event.get("code") == "checkpoint_copy"]
    assert told.startswith("step-00000004.g1: the share of rank 0 on gpu7: [Errno 5] Input/output error")


def test_a_node_whose_disk_takes_nothing_walks_back_with_the_others(replicated: Cluster) -> None:
    """One rank's error there would end every attempt, and the older shared step would never be reached."""
    replicated.killed(peer=True)
    disk = replicated.disk(2).parent
    shutil.rmtree(disk)
    disk.write_text("a file where a folder should be")
    resumed = replicated.resumed(peer=True)
    assert resumed.step == 8
    (told,) = resumed.signs("checkpoint_not_whole")
    assert "gpu2 cannot keep what it lacks: [Errno 20] Not a directory" in told and str(disk) in told
    same_as_uninterrupted(replicated, resumed)


def test_every_copy_of_a_share_is_bad(replicated: Cluster) -> None:
    """The older shared step, and why not the newer one, with every copy's own reason."""
    replicated.killed(peer=True)
    flip(replicated.share(2, 10, 1) / "tensors.bin")
    os.truncate(replicated.share(1, 10, 1) / "tensors.bin", 100)
    resumed = replicated.resumed(peer=True)
    assert resumed.step == 8
    (told,) = resumed.signs("checkpoint_not_whole")
    assert "on gpu1: rank-00001.d/tensors.bin has 100 bytes" in told
    assert "on gpu2: rank-00001.d/tensors.bin does not match its digest" in told
    same_as_uninterrupted(replicated, resumed)


def test_a_rank_file_lost_from_the_index_costs_no_resume_by_fewer_ranks(replicated: Cluster) -> None:
    """The shares on the nodes have it too, and that is the one that was compared."""
    replicated.killed(peer=True)
    commit_complete(replicated.world.run, now=time.time())  # the kill may have come before rank 0's commit
    (replicated.world.run / "local" / "step-00000010.g1" / "rank-00001.json").write_text("[]")
    replicated.world.nodes = 1
    assert replicated.resumed(1, elastic="keep_lr").step == 10


def test_a_damaged_index_on_shared_storage_is_set_aside(replicated: Cluster) -> None:
    replicated.killed()
    (replicated.world.run / "local" / "step-00000010.g1" / "manifest.json").write_text("{")
    resumed = replicated.resumed()
    assert resumed.step == 8
    (record,) = resumed.checkpoints("local", "quarantined")
    assert record["folder"] == "step-00000010.g1" and "manifest.json" in record["reason"]
