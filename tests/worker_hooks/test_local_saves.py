"""Saves on the nodes: what lies where, what counts, what stays, and what a disk that fails costs."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.conftest import World
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.protocol import committing, generations, leases, minting
from worker_hooks.protocol.manifest import MANIFEST, rank_file_name
from worker_hooks.protocol.tiers import LOCAL
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files import writing
from worker_hooks.training.settings import read_settings
from worker_hooks.training.tiers import retention
from worker_hooks.training.tiers.tiers import Tiers

pytestmark = pytest.mark.torch
__all__ = ["run_dir"]


def records(folder: Path, tier: str, state: str = "committed") -> list[dict[str, Any]]:
    found = [event for event in events(folder) if event["kind"] == "checkpoint" and event["state"] == state]
    return [record for record in found if record["tier"] == tier]


def steps(names: list[str]) -> list[int]:
    return [int(name[5:13]) for name in names]


def local_steps(run: Path) -> list[int]:
    return steps(generations.accepted_folders(run, LOCAL))


def shares(node: Path) -> list[int]:
    return sorted(steps([folder.name for folder in node.glob("step-*")]))


def train(root: Path, local: Path, updates: int, **options: Any) -> Path:
    """The run's folder."""
    options = {"checkpoint_every": 4, "local_every": 2, "asynchronous": False, **options}
    with Run(model=torch.nn.Linear(4, 4), root=root, local=local / "{node}", **options) as run:
        for _ in range(updates):
            run.step(loss=1.0)
    return run.folder


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This node's folder, which `{node}` names."""
    monkeypatch.setenv("SLURMD_NODENAME", "gpu7")
    return tmp_path / "nvme" / "gpu7"


# --- what lies where ------------------------------------------------------------------------------------------------


def test_the_bytes_are_on_the_node_and_what_makes_them_count_is_on_shared_storage(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 2)
    share, index = node / run.name / "step-00000002.g1", run / "local" / "step-00000002.g1"
    assert sorted(path.name for path in share.iterdir()) == ["rank-00000.d", "rank-00000.json"]
    assert sorted(path.name for path in index.iterdir()) == ["manifest.json", "rank-00000.json"]
    assert (share / "rank-00000.json").read_bytes() == (index / "rank-00000.json").read_bytes()
    (ref,) = generations.read_manifest(index).ranks
    said = generations.read_rank_file(index, 0)
    assert ref.file == "rank-00000.json" and said.saving == {"node": "gpu7", "copy": None}
    assert all((share / entry.name).stat().st_size == entry.bytes for entry in said.files)
    assert (node / run.name).stat().st_mode & 0o777 == 0o700, "other users of the node read no weights"


def test_a_step_that_is_due_on_both_tiers_is_the_same_bytes_on_both(tmp_path: Path, node: Path, run_dir: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 5)
    name = "step-00000004.g1"
    for file in ("rank-00000.json", "rank-00000.d/tensors.bin", "rank-00000.d/index.json"):
        assert (run / name / file).read_bytes() == (node / run.name / name / file).read_bytes(), file
    manifests = [generations.read_manifest(folder / name) for folder in (run, run / "local")]
    assert manifests[0].ranks == manifests[1].ranks
    assert [record["step"] for record in records(run_dir, "local")] == [2, 4]
    assert [record["step"] for record in records(run_dir, "shared")] == [4, 5], "the last update is saved for good"
    assert all(record["copies"] == 0 for record in records(run_dir, "local"))


def test_what_is_linked_on_shared_storage_is_counted_there_and_not_on_the_node(
    tmp_path: Path, node: Path, run_dir: Path
) -> None:
    model = torch.nn.Linear(600, 600)
    with Run(model=model, root=tmp_path, local=node, local_every=2, checkpoint_every=2, asynchronous=False) as run:
        for _ in range(8):
            run.step(loss=1.0)
    linked = [record["bytes_linked"] for record in records(run_dir, "shared")]
    assert linked[0] == 0 and linked[-1] > 1 << 20, linked
    assert {record["bytes_linked"] for record in records(run_dir, "local")} == {0}


def test_losses_since_the_last_save_for_good_stay_in_its_record(tmp_path: Path, node: Path) -> None:
    """A node-local save does not take them away: the node may be gone when they are needed."""
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    assert [step for step, _ in generations.read_rank_file(run / "step-00000004.g1", 0).losses] == [1, 2, 3, 4]


def test_what_somebody_asked_for_goes_to_shared_storage_alone(tmp_path: Path, node: Path, run_dir: Path) -> None:
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, local=node, local_every=1, checkpoint_every=0) as run:
        run.step(loss=1.0)
        run._attempt._saver.settle()
        run._attempt._occasions.warned.count = 1
        run.step(loss=1.0)
    assert local_steps(run.folder) == [1]
    assert generations.accepted_folders(run.folder) == ["step-00000002.g1"]


def test_a_save_that_was_left_out_is_counted_on_its_own_tier(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, local=node, local_every=1, checkpoint_every=3) as run:
        monkeypatch.setattr(run._attempt._saver._turns, "begin", lambda step: step in (1, 6))
        for _ in range(6):
            run.step(loss=1.0)
            run._attempt._saver.settle()
        monkeypatch.undo()
    found = [*records(run_dir, "local"), *records(run_dir, "shared")]
    skipped = {(record["tier"], record["step"]): record["skipped"] for record in found}
    assert skipped == {("local", 1): 0, ("local", 6): 4, ("shared", 6): 1}


# --- what counts and what stays --------------------------------------------------------------------------------------


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
    with pytest.raises(generations.NotNewest):
        retention.follow_index(node / run.name, run, 1)
    assert shares(node / run.name) == [1, 2, 4]


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


def test_a_run_that_is_not_over_leaves_what_the_next_attempt_may_take(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4, total_steps=6)
    assert local_steps(run) == [4, 2] and shares(node / run.name) == [2, 4]


def test_the_end_of_a_superseded_attempt_clears_nothing(tmp_path: Path, node: Path) -> None:
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    minting.mint(run, node="other", world_size=1, now=time.time())
    with pytest.raises(generations.NotNewest):
        retention.clear(node / run.name, run, 1, 4)
    assert shares(node / run.name) == [2, 4]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_the_environment_says_what_the_script_leaves_open(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELUME_LOCAL", str(tmp_path / "shm-{node}"))
    monkeypatch.setenv("RELUME_LOCAL_EVERY", "3")
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, checkpoint_every=0, asynchronous=False) as run:
        for _ in range(3):
            run.step(loss=1.0)
    assert local_steps(run.folder) == [3]
    assert shares(tmp_path / "shm-gpu7" / run.folder.name) == [3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"local": "nvme/{node}", "local_every": 2}, "absolute, such as /nvme/{node}"),
        ({"local": "/nvme"}, "local_every .or RELUME_LOCAL_EVERY. says after how many updates"),
        ({"local": "/nvme", "local_every": -1}, "local_every=-1 .* a number of updates"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Run(root=tmp_path, **options)


def test_a_script_may_name_the_interval_where_the_site_has_no_folder(tmp_path: Path) -> None:
    with Run(model=torch.nn.Linear(4, 4), root=tmp_path, local_every=1, asynchronous=False) as run:
        run.step(loss=1.0)
    assert not (run.folder / "local").exists()


def test_peers_are_said_to_be_missing_on_a_single_node(tmp_path: Path, node: Path, run_dir: Path) -> None:
    train(tmp_path / "root", tmp_path / "nvme", 4, peer=True)
    said = [event["raw"] for event in events(run_dir) if event.get("code") == "checkpoint_peer"]
    assert said == ["peer=True: all ranks run on gpu7, so there is no peer to copy to"]


# --- a disk that fails ------------------------------------------------------------------------------------------------


def failing_below(folder: Path, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    left = [times]

    def write(descriptor: int, data: memoryview) -> int:
        if left[0] and str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(str(folder)):
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)

    monkeypatch.setattr(writing, "write", write)


def test_a_full_local_disk_costs_that_local_save_and_no_more(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_below(node, monkeypatch, times=2)
    run = train(tmp_path / "root", tmp_path / "nvme", 6)
    failed = records(run_dir, "local", "failed")
    assert [record["step"] for record in failed] == [2, 4]
    assert all("No space left" in record["reason"] and "tensors.bin" in record["reason"] for record in failed)
    assert [record["step"] for record in records(run_dir, "shared")] == [4, 6]
    assert local_steps(run) == [6]
    assert shares(node / run.name) == [6], "what was half written made room"
    assert not (run / "local" / "step-00000002.g1").exists()


def test_shared_storage_that_is_full_costs_no_local_save(
    tmp_path: Path, node: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_below(tmp_path / "root", monkeypatch)
    run = train(tmp_path / "root", tmp_path / "nvme", 6)
    assert [record["step"] for record in records(run_dir, "shared", "failed")] == [4]
    assert local_steps(run) == [6, 4]


def test_a_local_folder_that_cannot_be_made_costs_no_training(tmp_path: Path, node: Path, run_dir: Path) -> None:
    node.parent.mkdir()
    node.write_text("a file where a folder should be")
    run = train(tmp_path / "root", tmp_path / "nvme", 4)
    assert [record["step"] for record in records(run_dir, "local", "failed")] == [2, 4]
    assert generations.accepted_folders(run) == ["step-00000004.g1"]


# --- two nodes --------------------------------------------------------------------------------------------------------


def test_each_node_keeps_its_own_ranks_shares(world: World, tmp_path: Path) -> None:
    world.nodes = 2
    env = {"RELUME_LOCAL": str(tmp_path / "nvme" / "{node}"), "RELUME_LOCAL_EVERY": "2"}
    assert set(world.tiny(4, total=8, every=4, env=env, die={"rank": None, "step": 7}).wait()) == {-9}
    committing.commit_complete(world.run, now=time.time())  # as the next attempt does
    assert local_steps(world.run)[:2] == [6, 4]
    for node, ranks in (("gpu1", [0, 1]), ("gpu2", [2, 3])):
        share = tmp_path / "nvme" / node / world.run.name / "step-00000006.g1"
        files = sorted(path.name for path in share.glob("rank-*.json"))
        assert files == [rank_file_name(rank) for rank in ranks]
    index = world.run / "local" / "step-00000006.g1"
    nodes = [json.loads((index / rank_file_name(rank)).read_bytes())["saving"]["node"] for rank in range(4)]
    assert nodes == ["gpu1", "gpu1", "gpu2", "gpu2"]


def test_one_nodes_full_disk_costs_that_local_save_on_all_and_makes_room_on_the_others(
    world: World, tmp_path: Path
) -> None:
    world.nodes = 2
    env = {"RELUME_LOCAL": str(tmp_path / "nvme" / "{node}"), "RELUME_LOCAL_EVERY": "2"}
    (tmp_path / "nvme").mkdir()
    (tmp_path / "nvme" / "gpu2").write_text("")
    assert set(world.tiny(2, total=10, every=4, env=env, die={"rank": None, "step": 9}).wait()) == {-9}
    committing.commit_complete(world.run, now=time.time())
    assert local_steps(world.run) == []
    assert generations.accepted_folders(world.run) == ["step-00000008.g1", "step-00000004.g1"]
    assert len(shares(tmp_path / "nvme" / "gpu1" / world.run.name)) <= 1


class Gathered:
    """A coordinator whose other rank says what it is told to say."""

    rank, world_size = 0, 2

    def __init__(self, change: dict[str, Any]) -> None:
        self._change = change

    def gather(self, value: Any) -> list[Any]:
        return [value, {**value, **self._change} if isinstance(value, dict) else "gpu2"]


def test_ranks_with_other_settings_than_each_other_are_refused(tmp_path: Path, node: Path) -> None:
    """A save that one rank takes no part in would never end, and no other could begin."""
    settings = read_settings(root=tmp_path, local=node, local_every=2)
    with pytest.raises(CheckpointError, match=r"rank 0 on gpu7 has .*'local_every': 2.*, rank 1 on gpu2 has .*: 3"):
        Tiers(settings, Gathered({"local_every": 3}), None, None, keep=2)  # type: ignore[arg-type]


def test_a_run_killed_between_the_nodes_bytes_and_the_commit_counts_it_at_the_next_start(
    world: World, tmp_path: Path
) -> None:
    env = {"RELUME_LOCAL": str(tmp_path / "nvme"), "RELUME_LOCAL_EVERY": "2"}
    started = world.tiny(2, total=6, every=0, env=env, die_before_commit={"rank": 0})
    assert -9 in started.wait()
    index = world.run / "local" / "step-00000002.g1"
    assert not (index / MANIFEST).exists() and (index / rank_file_name(1)).exists()
    made = minting.mint(world.run, node="gpu1", world_size=2, now=time.time())
    assert made.accepted_local == (index.name,)
