"""The offline commands on what real torch wrote: our own engine, torch.save, torch.distributed.checkpoint."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from worker_hooks import Run
from worker_hooks.cli import checkpoints_diff, checkpoints_verify
from worker_hooks.cli.checkpoints_list import listing
from worker_hooks.cli.checkpoints_places import look
from worker_hooks.cli.checkpoints_stored import read_stored

pytestmark = pytest.mark.torch
NOW = 1_000_000.0


def objects() -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8))
    model[1].weight.requires_grad_(False)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}


def update(tracked: dict[str, Any]) -> float:
    loss = tracked["model"](torch.randn(4, 64)).square().sum()
    loss.backward()
    tracked["optimizer"].step()
    tracked["optimizer"].zero_grad()
    return float(loss.detach())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[dict[str, torch.Tensor]]]:
    """Two checkpoints by our engine, and the model's state at each."""
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    tracked, states = objects(), []
    with Run(root=tmp_path / "root", checkpoint_every=1, keep=2, **tracked) as run:
        for _ in range(2):
            run.step(loss=update(tracked))
            states.append({key: value.clone() for key, value in tracked["model"].state_dict().items()})
    return run.folder, states


def test_our_engines_checkpoints(run: tuple[Path, list[dict[str, torch.Tensor]]]) -> None:
    folder, _ = run
    (found,) = listing(folder, NOW)["runs"]
    assert [(item["step"], item["state"], item["world_size"]) for item in found["checkpoints"]] == [
        (2, "committed", 1),
        (1, "committed", 1),
    ]
    assert found["resume"]["step"] == 2 and found["latest"]["agrees"] and found["problems"] == []
    checked = checkpoints_verify.verification(look(folder), everything=False, limit=None, progress=False)
    assert [item["result"] for item in checked["checkpoints"]] == ["good", "good"]


def test_a_flipped_bit_names_the_tensor(run: tuple[Path, list[dict[str, torch.Tensor]]]) -> None:
    folder = run[0] / "step-00000002.g1"
    chunk = read_stored(folder).tensors["model/0.weight"].chunks[0]
    path = folder / chunk.file
    data = bytearray(path.read_bytes())
    data[chunk.start + 100] ^= 16
    path.write_bytes(data)
    (item,) = checkpoints_verify.verification(look(folder), everything=False, limit=None, progress=False)["checkpoints"]
    assert (item["result"], item["tensors"]) == ("bad", ["model/0.weight"])


def test_values_agree_with_torch(run: tuple[Path, list[dict[str, torch.Tensor]]]) -> None:
    folder, (before, after) = run
    found = checkpoints_diff.difference(folder / "step-00000001.g1", folder / "step-00000002.g1", values=True)
    told = {item["key"]: item["largest_difference"] for item in found["tensors"]["differ"]}
    for key, value in after.items():
        largest = float((value.double() - before[key].double()).abs().max())
        assert told.get(f"model/{key}", 0.0) == pytest.approx(largest, rel=1e-12)
    assert "model/1.weight" not in told  # frozen
    assert [leaf["what"] for leaf in found["head"]] == ["step"]


def test_files_of_torch_save(tmp_path: Path) -> None:
    tracked = objects()
    update(tracked)
    model, optimizer = tracked["model"].state_dict(), tracked["optimizer"].state_dict()
    torch.save({"model": model, "optimizer_state_dit": optimizer, "epoch": 3}, tmp_path / "r11.pt")
    torch.save(model, tmp_path / "weights.pth")
    content = {
        "pytorch-lightning_version": "2.5",
        "state_dict": model,
        "optimizer_states": [optimizer],
        "global_step": 7,
    }
    torch.save(content, tmp_path / "last.ckpt")
    torch.save(model, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    items = {Path(item["path"]).name: item for item in listing(tmp_path, NOW)["foreign"]["checkpoints"]}
    assert items["r11.pt"]["contents"]["present"] == ["model"]
    assert items["weights.pth"]["contents"]["present"] == ["model"]
    assert items["last.ckpt"]["contents"]["present"] == ["model", "optimizer", "step"]
    assert (items["last.ckpt"]["kind"], items["last.ckpt"]["step"]) == ("Lightning", 7)
    assert items["old.pt"]["contents"] is None and items["old.pt"]["notes"] == ["not readable without running code"]


@pytest.mark.parametrize("damage", ["none", "short", "gone", "metadata"])
def test_folders_of_dcp(tmp_path: Path, damage: str) -> None:
    tracked, folder = objects(), tmp_path / "step_7"
    update(tracked)
    state = {"model": tracked["model"].state_dict(), "optimizer": tracked["optimizer"].state_dict(), "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    shard = folder / "__0_0.distcp"
    if damage == "short":
        os.truncate(shard, shard.stat().st_size - 1)
    elif damage == "gone":
        shard.unlink()
    elif damage == "metadata":
        (folder / ".metadata").unlink()
    (item,) = listing(tmp_path, NOW)["foreign"]["checkpoints"]
    assert (item["kind"], item["step"], item["usable"]) == ("DCP", 7, damage == "none")
    if damage != "metadata":
        assert item["contents"]["present"] == ["model", "optimizer", "step"]
        assert item["contents"]["lacks"] == ["scheduler", "scaler", "rng", "rng of each rank", "data position"]
    names = {"none": "", "short": "__0_0.distcp has", "gone": "__0_0.distcp is missing", "metadata": ".metadata is"}
    assert names[damage] in "".join(item["problems"])
