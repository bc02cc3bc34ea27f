"""Saves on the nodes: what lies where, what counts, what stays, and what a disk that fails costs."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker_hooks.conftest import World
from tests.worker_hooks.local_stage import local_steps, node, records, shares, train
from tests.worker_hooks.test_training_telemetry import events, run_dir
from worker_hooks import Run
from worker_hooks.protocol import committing, generations, minting
from worker_hooks.protocol.manifest import MANIFEST, rank_file_name
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.settings import read_settings
from worker_hooks.training.tiers.tiers import Tiers

pytestmark = pytest.mark.torch
__all__ = ["node", "run_dir"]


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
    waited = {record["step"]: record["blocked_s"] is None for record in records(run_dir, "local")}
    assert waited == {2: False, 4: True}, "what training waited for one save is counted once"
    assert all(record["blocked_s"] is not None for record in records(run_dir, "shared"))


def test_a_share_that_another_run_of_the_same_id_left_is_replaced(tmp_path: Path, node: Path, run_dir: Path) -> None:
    """Whoever deletes a root and begins again does not visit every node."""
    run = train(tmp_path / "root", tmp_path / "nvme", 3)
    shutil.rmtree(run)
    run_dir.mkdir(exist_ok=True)
    run = train(tmp_path / "root", tmp_path / "nvme", 3)
    assert (run / "local" / "step-00000002.g1" / MANIFEST).exists()
    share = node / run.name / "step-00000002.g1" / "rank-00000.json"
    assert share.read_bytes() == (run / "local" / "step-00000002.g1" / "rank-00000.json").read_bytes()


def test_a_share_beyond_the_memory_limit_is_the_same_on_both(tmp_path: Path, node: Path, run_dir: Path) -> None:
    options = {"local": node, "local_every": 1, "checkpoint_every": 1, "host_memory": 8192}
    with Run(model=torch.nn.Linear(200, 200), root=tmp_path, **options) as run:
        run.step(loss=1.0)
    place = "step-00000001.g1/rank-00000.d/tensors.bin"
    assert (run.folder / place).read_bytes() == (node / run.folder.name / place).read_bytes()
    assert [record["in_pieces"] for tier in ("local", "shared") for record in records(run_dir, tier)] == [True, True]


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
        ({"local": "/nvme", "local_every": -1}, "local_every=-1: a whole number, at least 0"),
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


# --- two nodes --------------------------------------------------------------------------------------------------------


def test_each_node_keeps_its_own_ranks_shares(world: World, tmp_path: Path) -> None:
    world.nodes = 2
    env = {"RELUME_LOCAL": str(tmp_path / "nvme" / "{node}"), "RELUME_LOCAL_EVERY": "2"}
    assert set(world.tiny(4, total=8, every=4, env=env, die={"rank": None, "step": 7}).wait()) == {-9}
    committing.commit_complete(world.run, now=time.time())  # as the next attempt does
    assert local_steps(world.run)[:2] == [6, 4]
    for name, ranks in (("gpu1", [0, 1]), ("gpu2", [2, 3])):
        share = tmp_path / "nvme" / name / world.run.name / "step-00000006.g1"
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
