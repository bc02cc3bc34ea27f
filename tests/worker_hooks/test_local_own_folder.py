"""The folder on a node is that node's alone: retention removes what it does not know from it."""

from pathlib import Path

import pytest
import torch

from tests.worker_hooks.conftest import World
from tests.worker_hooks.local_stage import node, records, train
from tests.worker_hooks.test_training_telemetry import run_dir
from worker_hooks import Run
from worker_hooks.protocol import generations
from worker_hooks.training.errors import CheckpointError

pytestmark = pytest.mark.torch
__all__ = ["node", "run_dir"]


def _saved(root: Path, node: Path) -> Path:
    """The folder of a run with checkpoints on shared storage only."""
    return train(root, node.parent, 8, local_every=0)


@pytest.mark.parametrize("how", ["as it is", "a link", "a link to the run", "a link to the index"])
def test_shared_storage_as_the_nodes_folder_is_refused_and_nothing_is_removed(
    tmp_path: Path, node: Path, how: str
) -> None:
    root = tmp_path / "root"
    run, given = _saved(root, node), tmp_path / "disk"
    if how == "as it is":
        given = root
    elif how == "a link":
        given.symlink_to(root)
    else:
        given.mkdir()
        (run / "local").mkdir(exist_ok=True)
        (given / run.name).symlink_to(run if how == "a link to the run" else run / "local")
    counted = generations.accepted_folders(run)
    with pytest.raises(CheckpointError, match=r"local: .* on shared storage: give it a folder on the nodes' own disks"):
        Run(model=torch.nn.Linear(4, 4), root=root, local=given, local_every=2).restore()
    assert generations.accepted_folders(run) == counted == ["step-00000008.g1", "step-00000004.g1"]


def test_a_folder_inside_the_checkpoint_root_is_a_folder_like_any_other(
    tmp_path: Path, node: Path, run_dir: Path
) -> None:
    root = tmp_path / "root"
    run = train(root, root / "on-nodes", 8)
    assert generations.accepted_folders(run) == ["step-00000008.g1", "step-00000004.g1"]
    assert [record["step"] for record in records(run_dir, "local")] == [2, 4, 6, 8]
    assert not list((root / "on-nodes" / "gpu7" / run.name).glob(".*")), "no mark is left"


def test_one_folder_for_two_nodes_is_refused_on_both(world: World, tmp_path: Path) -> None:
    """With `peer` each copy would replace what it is a copy of."""
    world.nodes = 2
    started = world.tiny(4, env={"RELUME_LOCAL": str(tmp_path / "same"), "RELUME_LOCAL_EVERY": "2"})
    assert started.wait() == [1] * 4
    assert started.text().count("is one folder for gpu1 and gpu2: name a disk of each node's own") == 4 or (
        started.text().count("is one folder for gpu2 and gpu1: name a disk of each node's own") == 4
    )
    assert not list((tmp_path / "same").glob("*/.*"))
