"""Checkpoints that others wrote: told apart, judged and listed without running anything of theirs."""

import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.cli import checkpoints_verify
from worker_hooks.cli.checkpoints_files import look_at_file, step_in_name
from worker_hooks.cli.checkpoints_list import lines, listing
from worker_hooks.cli.checkpoints_parts import contents_of
from worker_hooks.cli.checkpoints_places import look

pytestmark = pytest.mark.pure
NOW = 1_000_000.0


class Bomb:
    """Unpickling it would be noticed."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/relume-test-was-run",)


def torch_zip(path: Path, content: object) -> Path:
    """What torch.save's file looks like: a pickle and the tensors' bytes beside it, nothing compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(content, protocol=2))
        archive.writestr(f"{path.stem}/data/0", b"\0" * 64)
    return path


def sparse(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def foreign(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = listing(directory, NOW)["foreign"]
    return found


def by_name(directory: Path) -> dict[str, dict[str, Any]]:
    return {Path(item["path"]).name: item for item in foreign(directory)["checkpoints"]}


# --- the recorded cases -------------------------------------------------------------------------------------------


def test_r11_a_key_with_a_slip_is_no_optimizer(tmp_path: Path) -> None:
    torch_zip(tmp_path / "r11.pt", {"model": {"w": 1}, "optimizer_state_dit": {"state": {}}, "epoch": 3})
    held = by_name(tmp_path)["r11.pt"]["contents"]
    assert held["full_state"] is False
    assert set(held["lacks"]) >= {"optimizer", "scheduler", "scaler", "rng", "data position", "step"}
    assert held["unknown"] == [{"key": "optimizer_state_dit", "resembles": "optimizer"}]
    assert any("optimizer_state_dit" in line and "meant as optimizer" in line for line in lines(listing(tmp_path, NOW)))


def test_r20_the_marked_set_is_chosen_and_the_mixed_one_is_told_file_by_file(tmp_path: Path) -> None:
    whole = 571004120
    sparse(tmp_path / "step_22750" / "shard_96.pt.tmp", whole)
    sparse(tmp_path / "step_22750" / "shard_97.pt", whole)
    for number, size in ((0, 0), (100, whole), (103, 0), (104, 569100288)):
        sparse(tmp_path / "last" / f"shard_{number}.pt", size)
    sparse(tmp_path / "step_22500" / "_COMMITTED", 64)
    os.utime(tmp_path / "step_22500", (NOW - 900, NOW - 900))
    os.utime(tmp_path / "last", (NOW, NOW))  # the newest by its time
    found = foreign(tmp_path)
    assert found["resume"]["step"] == 22500 and "marked as committed" in found["resume"]["why"]
    items = by_name(tmp_path)
    assert [name for name, item in items.items() if item["usable"]] == ["step_22500"]
    assert items["last"]["problems"] == [
        "shard_0.pt: zero bytes",
        "shard_103.pt: zero bytes",
        "shard_104.pt: 569100288 bytes, the longest of its kind has 571004120",
    ]
    assert items["step_22750"]["problems"] == ["shard_96.pt.tmp: left by a write that did not end"]
    assert (tmp_path / "last" / "shard_0.pt").exists()  # kept for inspection


def test_r24_a_pointer_is_only_a_hint(tmp_path: Path) -> None:
    for step in (39999, 49999):
        torch_zip(tmp_path / f"step_{step}" / "model.pt", {"model": {"w": 1}})
        (tmp_path / f"step_{step}" / "_COMMITTED").touch()
    (tmp_path / "LATEST").write_text("step_39999\n")
    found = foreign(tmp_path)
    assert found["resume"]["step"] == 49999
    assert found["alarms"] == ["LATEST says 'step_39999', the newest usable one is step_49999: a stale pointer"]
    assert listing(tmp_path, NOW)["others"] == []


def test_r28_the_highest_step_and_not_the_newest_file(tmp_path: Path) -> None:
    for name, step, at in (("last.ckpt", 61240, NOW - 900), ("last-v1.ckpt", 512, NOW)):
        path = torch_zip(
            tmp_path / name, {"pytorch-lightning_version": "2.5", "global_step": step, "state_dict": {"w": 1}}
        )
        os.utime(path, (at, at))
    found = foreign(tmp_path)
    assert (Path(found["resume"]["path"]).name, found["resume"]["step"]) == ("last.ckpt", 61240)
    (alarm,) = found["alarms"]
    assert "last-v1.ckpt (step 512)" in alarm and "restarted from scratch" in alarm
    for path in tmp_path.iterdir():  # in the order in which training writes them there is nothing to tell
        os.utime(path, (NOW if path.name == "last.ckpt" else NOW - 900,) * 2)
    assert foreign(tmp_path)["alarms"] == []


# --- kinds --------------------------------------------------------------------------------------------------------


def test_lightning(tmp_path: Path) -> None:
    content = {
        "pytorch-lightning_version": "2.5",
        "epoch": 1,
        "global_step": 120,
        "state_dict": OrderedDict(w=1),
        "optimizer_states": [{"state": {}}],
        "lr_schedulers": [],
        "loops": {"fit_loop": {}},
        "callbacks": {},
    }
    torch_zip(tmp_path / "last.ckpt", content)
    item = by_name(tmp_path)["last.ckpt"]
    assert (item["kind"], item["step"], item["step_from"]) == ("Lightning", 120, "its content")
    assert item["contents"]["present"] == ["model", "optimizer", "step"]
    assert item["contents"]["empty"] == ["scheduler"]
    assert item["contents"]["lacks"] == ["scheduler", "scaler", "rng", "rng of each rank", "data position"]


@pytest.mark.parametrize("missing", [None, "optimizer.pt", "scheduler.pt", "rng_state_1.pth", "trainer_state.json"])
def test_hugging_face(tmp_path: Path, missing: str | None) -> None:
    folder = tmp_path / "checkpoint-500"
    for name in (
        "optimizer.pt",
        "scheduler.pt",
        "scaler.pt",
        "rng_state_0.pth",
        "rng_state_1.pth",
        "training_args.bin",
    ):
        torch_zip(folder / name, {"x": 1})
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 500, "epoch": 1.5}))
    if missing:
        (folder / missing).unlink()
    item = by_name(tmp_path)["checkpoint-500"]
    assert (item["kind"], item["step"], item["problems"]) == ("Hugging Face Trainer", 500, [])
    lost = {"optimizer.pt": "optimizer", "scheduler.pt": "scheduler", "rng_state_1.pth": "rng of each rank"}
    lost["trainer_state.json"] = "step"
    assert item["contents"]["lacks"] == sorted(
        [*([lost[missing]] if missing else []), "data position"],
        key=["optimizer", "scheduler", "rng of each rank", "data position", "step"].index,
    )


def test_files_that_cannot_be_whole_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"
    torch_zip(folder / "optimizer.pt", {"state": {}})
    torch_zip(folder / "scheduler.pt", {"last_epoch": 3})
    os.truncate(folder / "scheduler.pt", 100)
    sparse(folder / "rng_state_0.pth", 0)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 7)
    (folder / "trainer_state.json").write_text("{")
    item = by_name(tmp_path)["checkpoint-500"]
    assert not item["usable"] and (item["step"], item["step_from"]) == (500, "its name")
    said = " ".join(item["problems"])
    assert all(name in said for name in ("scheduler.pt", "rng_state_0.pth", "model.safetensors", "trainer_state.json"))
    assert "optimizer.pt" not in said


def test_a_bare_state_dict_is_a_model_and_nothing_else(tmp_path: Path) -> None:
    class Fake:
        def __reduce__(self) -> Any:
            return _rebuild_tensor_v2, (1,)

    torch_zip(tmp_path / "weights.pth", OrderedDict(a=Fake(), b=Fake()))
    assert by_name(tmp_path)["weights.pth"]["contents"]["present"] == ["model"]


def _rebuild_tensor_v2(number: int) -> int:
    return number


def test_nothing_of_a_foreign_file_is_run(tmp_path: Path) -> None:
    marker = Path("/tmp/relume-test-was-run")
    marker.unlink(missing_ok=True)
    torch_zip(tmp_path / "bomb.pt", {"model": Bomb(), "step": 7})
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Bomb()))
    items = by_name(tmp_path)
    assert items["bomb.pt"]["step"] == 7 and items["dcp"]["problems"] == [".metadata is not DCP's"]
    assert not marker.exists()


@pytest.mark.parametrize("size", [0, 1, 4, 30, 60, 100, 150])
def test_a_file_cut_at_any_place_is_no_crash(tmp_path: Path, size: int) -> None:
    path = torch_zip(tmp_path / "x.pt", {"model": {"w": 1}, "step": 3})
    os.truncate(path, size)
    facts = look_at_file(path)
    assert facts.keys is None and (facts.problem or facts.why)


def test_a_pickle_that_is_broken_is_not_readable_and_says_so(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}(X\x01")
    facts = look_at_file(tmp_path / "x.pt")
    assert facts.keys is None and facts.why is not None and "not readable without running code" in facts.why


def test_verify_compares_the_checksums_of_a_zip(tmp_path: Path) -> None:
    path = torch_zip(tmp_path / "x.pt", {"model": {"w": 1}})
    torch_zip(tmp_path / "y.pt", {"model": {"w": 1}})
    data = bytearray(path.read_bytes())
    place = data.index(b"\0" * 64)
    data[place + 10] ^= 1
    path.write_bytes(data)
    found = checkpoints_verify.verification(look(tmp_path), everything=False, limit=None, progress=False)
    assert {item["name"]: item["result"] for item in found["checkpoints"]} == {"x.pt": "bad", "y.pt": "good"}
    assert "x/data/0" in found["checkpoints"][0]["problems"][0] or "x/data/0" in found["checkpoints"][1]["problems"][0]


def test_what_carries_no_digests_is_not_called_good(tmp_path: Path) -> None:
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps({}))
    sparse(tmp_path / "last" / "shard_0.pt", 10)
    found = checkpoints_verify.verification(look(tmp_path / "last"), everything=False, limit=None, progress=False)
    assert [item["result"] for item in found["checkpoints"]] == ["unchecked"]
    assert checkpoints_verify.exit_code(found) == 2


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_22500", 22500),
        ("checkpoint-500", 500),
        ("epoch=3-step=1200.ckpt", 1200),
        ("global_step40", 40),
        ("iter_0000100", 100),
        ("last.ckpt", None),
        ("footstep12", None),
    ],
)
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def test_a_list_of_random_states_is_one_for_each_rank() -> None:
    assert "rng of each rank" in contents_of({"rng_states": [1, 2]}).present
    assert "rng of each rank" in contents_of({"rng_state": [1]}).lacks
