"""Resuming from shares on nodes: this node's, a partner's, shared storage's; two nodes on one machine, real ranks."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.conftest import ForkServer, World
from tests.worker_hooks.local_stage import node, train
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.protocol import generations
from worker_hooks.protocol.committing import commit_complete
from worker_hooks.protocol.losses import read_losses
from worker_hooks.protocol.tiers import LOCAL
from worker_hooks.training.files import reading

pytestmark = pytest.mark.torch
__all__ = ["node", "run_dir"]

KEYS = ("losses", "parameters", "buffers", "average", "lr", "next_random")
WRAPS: dict[str, dict[str, Any]] = {"ddp": {}, "fsdp": {"wrap": "fsdp", "batch_norm": False}}
# The last update before the kill is 11: the newest node-local checkpoint is 10, the newest shared one 8.
DIES = {"die": {"rank": None, "step": 11}, "every": 4}


class Cluster:
    """A training job on two nodes with a local disk each."""

    def __init__(self, server: ForkServer, folder: Path, wrap: dict[str, Any]) -> None:
        self.world = World(server, folder)
        self.world.nodes = 2
        self.wrap = wrap
        self.disks = folder / "nvme"
        self.env = {"RELUME_LOCAL": str(self.disks / "{node}"), "RELUME_LOCAL_EVERY": "2"}

    def disk(self, number: int) -> Path:
        return self.disks / f"gpu{number}" / self.world.run.name

    def share(self, node: int, step: int, rank: int) -> Path:
        return self.disk(node) / f"step-{step:08d}.g1" / f"rank-{rank:05d}.d"

    def killed(self, ranks: int = 2, *, peer: bool = False, **options: Any) -> None:
        started = self.world.tiny(ranks, env=self._env(peer), **{**DIES, **self.wrap, **options})
        assert any(status == -9 for status in started.wait()), started.text()

    def resumed(self, ranks: int = 2, *, name: str = "second", peer: bool = False, **options: Any) -> "Resumed":
        run_dir = self.world.new_run_dir(name, ranks)
        env = {**self._env(peer), "RELUME_RUN_DIR": str(run_dir)}
        ends = self.world.finish(ranks, env=env, **{"every": 4, **self.wrap, **options})
        return Resumed(ends, [self.world.events(run_dir, rank) for rank in range(ranks)])

    def _env(self, peer: bool) -> dict[str, str]:
        return {**self.env, "RELUME_PEER": str(int(peer))}


class Resumed:
    def __init__(self, ends: list[dict[str, Any]], events: list[list[dict[str, Any]]]) -> None:
        self.ends = ends
        self.events = events
        loaded = [event["data"] for found in events for event in found if event.get("name") == "loaded"]
        assert len({event["step"] for event in loaded}) == 1, "all ranks end on one step"
        self.step = loaded[0]["step"]
        self.places = [event.get("restored_from", {}) for event in loaded]

    def signs(self, code: str) -> list[str]:
        return [event["raw"] for event in self.events[0] if event.get("code") == code]

    def checkpoints(self, tier: str, state: str) -> list[dict[str, Any]]:
        found = [event for event in self.events[0] if event["kind"] == "checkpoint" and event["state"] == state]
        return [record for record in found if record.get("tier", "shared") == tier]


@pytest.fixture(params=WRAPS)
def cluster(request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path: Path) -> Cluster:
    return Cluster(fork_server, tmp_path / "job", WRAPS[request.param])


@pytest.fixture
def replicated(fork_server: ForkServer, tmp_path: Path) -> Cluster:
    return Cluster(fork_server, tmp_path / "job", {})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()


_references: dict[str, list[dict[str, Any]]] = {}


def same_as_uninterrupted(cluster: Cluster, resumed: Resumed, ranks: int = 2) -> None:
    key = json.dumps([cluster.wrap, ranks])
    if key not in _references:
        folder = cluster.world.folder / "reference"
        folder.mkdir()
        world = World(cluster.world._server, folder)
        ends = world.finish(ranks, every=0, **cluster.wrap)
        for rank, end in enumerate(ends):
            end["losses"] = list(read_losses(world.run, rank).values())
        _references[key] = ends
    for reference, end in zip(_references[key], resumed.ends, strict=True):
        assert {key: end[key] for key in KEYS} == {key: reference[key] for key in KEYS}


# --- this node's and the partner's ----------------------------------------------------------------------------------


def test_from_the_nodes_own_disks(cluster: Cluster) -> None:
    """Two updates are lost less than from shared storage; what the other node wrote comes from there."""
    cluster.killed()
    resumed = cluster.resumed()
    assert resumed.step == 10
    assert all(places["local"] == 1 and "shared" not in places for places in resumed.places), resumed.places
    same_as_uninterrupted(cluster, resumed)


def test_a_lost_nodes_share_comes_from_its_partner(cluster: Cluster) -> None:
    cluster.killed(peer=True)
    shutil.rmtree(cluster.disk(2))
    resumed = cluster.resumed(peer=True)
    assert resumed.step == 10
    assert resumed.places[0] == {"local": 2} and resumed.places[1] == {"peer": 2}
    same_as_uninterrupted(cluster, resumed)
    saved = resumed.checkpoints("local", "committed")
    assert saved and all(record["copies"] == 2 for record in saved), "the next saves go to the new disk as before"


def test_without_a_partner_the_older_shared_step_is_taken_and_the_reason_told(cluster: Cluster) -> None:
    cluster.killed()
    shutil.rmtree(cluster.disk(2))
    resumed = cluster.resumed()
    assert resumed.step == 8
    assert "step-00000010.g1: the share of rank 1 was only on gpu2, where it is no more" in resumed.signs(
        "checkpoint_not_whole"
    )
    assert not list(cluster.world.run.glob("**/quarantine.json")), "its node may come back"
    same_as_uninterrupted(cluster, resumed)


def test_a_node_is_brought_what_its_ranks_read_and_no_more(cluster: Cluster) -> None:
    """Replicated, each rank reads every share whole; sharded, a few small tensors of the other one's."""
    cluster.killed()
    started = cluster.world.tiny(2, env=cluster.env, **{**DIES, **cluster.wrap})
    assert any(started.wait()), started.text()
    brought = cluster.disk(1) / "step-00000010.g1" / "rank-00001.json"
    assert brought.exists() == (not cluster.wrap)


def test_an_attempt_without_a_local_folder_says_what_it_cannot_reach(replicated: Cluster) -> None:
    replicated.killed()
    replicated.env = {}
    resumed = replicated.resumed()
    assert resumed.step == 8
    assert resumed.signs("checkpoint_not_whole") == [
        "step-00000010.g1: its shares lie on nodes, and this attempt has no folder there (local=, RELUME_LOCAL)"
    ]


def test_a_node_that_is_not_in_this_job_is_named(replicated: Cluster) -> None:
    replicated.killed()
    replicated.world.nodes = 1
    resumed = replicated.resumed()
    assert resumed.step == 8
    assert resumed.signs("checkpoint_not_whole")[0] == (
        "step-00000010.g1: the share of rank 1 was only on gpu2, which is not in this job"
    )


def test_both_ranks_on_the_node_that_has_it_all(replicated: Cluster) -> None:
    """The other node is gone for good, and its shares were copied."""
    replicated.killed(peer=True)
    replicated.world.nodes = 1
    resumed = replicated.resumed(peer=True)
    assert resumed.step == 10 and resumed.places == [{"local": 2}] * 2
    same_as_uninterrupted(replicated, resumed)


# --- damage ---------------------------------------------------------------------------------------------------------


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


# --- what counts ----------------------------------------------------------------------------------------------------


def test_a_superseded_generations_node_local_step_is_never_loaded(replicated: Cluster) -> None:
    """It was committed after its successor began, which had not accepted it."""
    replicated.killed()
    index = replicated.world.run / "local" / "step-00000010.g1"
    hidden = index.with_name("elsewhere")
    index.rename(hidden)
    share = replicated.disk(1) / index.name
    shutil.copytree(share, replicated.disks / "kept")
    assert replicated.resumed(total=9).step == 8
    hidden.rename(index)
    shutil.copytree(replicated.disks / "kept", share, dirs_exist_ok=True)
    assert replicated.resumed(name="third", total=12).step == 9
    assert index.name not in generations.accepted_folders(replicated.world.run, LOCAL)


def test_a_step_that_fails_its_verification_is_set_aside_on_every_tier(replicated: Cluster) -> None:
    """Otherwise the next attempt would take the same step from the other tier, and fail again."""
    replicated.killed(die={"rank": None, "step": 9})
    env = {**replicated.env, "RELUME_SABOTAGE": "weights"}
    failed = replicated.world.tiny(2, env=env, every=4)
    assert failed.wait() == [77, 77], failed.text()
    name = "step-00000008.g1"
    for folder in (replicated.world.run / name, replicated.world.run / "local" / name):
        assert "failed verification" in (folder / "quarantine.json").read_text()
    assert replicated.resumed().step == 6


def test_a_peer_that_dies_in_the_middle_of_its_saves(replicated: Cluster) -> None:
    """Whatever was under way, the resumed run is the uninterrupted one."""
    replicated.env["RELUME_LOCAL_EVERY"] = "1"
    replicated.killed(peer=True, asynchronous=True, sleep_s=0.05, die={"rank": 1, "step": 9})
    resumed = replicated.resumed(peer=True)
    assert 1 <= resumed.step <= 9
    same_as_uninterrupted(replicated, resumed)


# --- another number of ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [2, 3])
def test_another_number_of_ranks_from_the_nodes(cluster: Cluster, now: int) -> None:
    cluster.killed(4, total=15, samples=240)
    resumed = cluster.resumed(now, elastic="keep_lr", total=15, samples=240)
    assert resumed.step == 10
    outcomes = {
        event["outcome"]
        for found in resumed.events
        for event in found
        if event["kind"] == "verification" and event["stage"] == "before_first_step"
    }
    assert outcomes == {"RESHARDED"}
    assert len({end["parameters"] for end in resumed.ends}) == (1 if not cluster.wrap else now)
