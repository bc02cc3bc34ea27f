"""What is resumed, what is refused, and what a run leaves behind. What is compared: test_training_verification."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker_hooks.conftest import World
from tests.worker_hooks.share_folder import forge
from worker_hooks.protocol import generations

pytestmark = pytest.mark.torch


# --- damaged storage ----------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped bit": (lambda folder: flip(folder / "rank-00001.d/tensors.bin"), "does not match its digest"),
    "truncated": (lambda folder: (folder / "rank-00000.d/tensors.bin").write_bytes(b"short"), "has 5 bytes"),
    "missing shard": (lambda folder: (folder / "rank-00001.d/tensors.bin").unlink(), "tensors.bin is missing"),
    "missing rank file": (lambda folder: (folder / "rank-00001.json").unlink(), "rank-00001.json is missing"),
    "other rank file": (lambda folder: flip(folder / "rank-00000.json"), "does not match its digest"),
    "empty manifest": (lambda folder: (folder / "manifest.json").write_bytes(b""), "not JSON"),
    "poisoned": (
        lambda folder: (folder / "rank-00000.d/tensors.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR."),
        "bytes",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_checkpoint_is_quarantined_and_walked_past(killed: World, damage: str) -> None:
    folder = killed.run / "step-00000008.g1"
    act, reason = DAMAGE[damage]
    act(folder)
    run_dir = killed.new_run_dir("second", 2)
    ends = killed.finish(2, env={"RELUME_RUN_DIR": str(run_dir)})
    assert reason in json.loads((folder / "quarantine.json").read_text())["reason"]
    events = killed.events(run_dir, 0)
    assert [event["folder"] for event in events if event.get("state") == "quarantined"] == [folder.name]
    (loaded,) = [event for event in events if event.get("name") == "loaded"]
    assert loaded["data"] == {"step": 4, "folder": "step-00000004.g1"}
    assert [len(end["losses"]) for end in ends] == [18, 18]
    assert not (killed.folder / "pwned").exists() and not Path("pwned").exists()


def test_nothing_but_bad_checkpoints_is_refused_and_a_fresh_start_says_so(killed: World) -> None:
    """R28: every rank stops with the reason; the waiver starts at step 0 and says what is given up."""
    for folder in killed.run.glob("step-*"):
        flip(folder / "rank-00000.d/tensors.bin")
    started = killed.tiny(2)
    assert started.wait() == [1, 1], started.text()
    assert started.text().count("RESTARTED_FROM_SCRATCH refused") == 2
    run_dir = killed.new_run_dir("third", 2)
    killed.finish(2, fresh_start=True, env={"RELUME_RUN_DIR": str(run_dir)})
    events = killed.events(run_dir, 0)
    (sign,) = [event for event in events if event.get("code") == "restarted_from_scratch"]
    assert "step-00000008.g1" in sign["raw"] and "step-00000004.g1" in sign["raw"]
    assert not [event for event in events if event.get("name") == "loaded"]
    assert next(event for event in events if event.get("name") == "first_step")["data"] == {"step": 1}


def test_the_hint_is_never_trusted(killed: World) -> None:
    """R24, R28: the pointer may be stale or wrong; the highest committed step of the lineage counts."""
    (killed.run / "latest").write_text("step-00000004.g1\n")
    run_dir = killed.new_run_dir("second", 2)
    killed.finish(2, env={"RELUME_RUN_DIR": str(run_dir)})
    (loaded,) = [event for event in killed.events(run_dir, 0) if event.get("name") == "loaded"]
    assert loaded["data"]["step"] == 8


# --- ends and edges -----------------------------------------------------------------------------------------------


def test_a_finished_run_finishes_at_once_and_writes_nothing(world: World) -> None:
    """R09: resumed at its total number of steps it neither steps nor saves."""
    world.finish(2, total=8)
    before = {path: path.stat().st_mtime_ns for path in world.run.glob("step-*/**/*") if path.is_file()}
    run_dir = world.new_run_dir("second", 2)
    ends = world.finish(2, total=8, env={"RELUME_RUN_DIR": str(run_dir)})
    assert [end["steps"] for end in ends] == [8, 8]
    assert before == {path: path.stat().st_mtime_ns for path in world.run.glob("step-*/**/*") if path.is_file()}
    names = [event.get("name") for event in world.events(run_dir, 0)]
    assert "finished" in names and "first_step" not in names


def test_a_checkpoint_at_an_epochs_end_does_the_remaining_epochs(world: World) -> None:
    """R02, R08: ten steps to an epoch, killed right after the one at its end."""
    plain = world.finish(2, plain=True, total=25)
    assert all(world.tiny(2, total=25, every=10, die={"rank": 0, "step": 11}).wait())
    ends = world.finish(2, total=25, every=10)
    assert [end["losses"] for end in ends] == [end["losses"] for end in plain]


def test_one_line_in_the_log_says_how_the_resume_went(killed: World) -> None:
    """Where nobody has a page."""
    started = killed.tiny(2)
    assert started.wait() == [0, 0], started.text()
    lines = [line for line in started.text().splitlines() if "goes on after" in line]
    assert lines == ["relume: goes on after step 8, step-00000008.g1: PASS"]


def test_another_number_of_ranks_is_refused_unless_a_policy_says_what_becomes_of_the_batch(killed: World) -> None:
    """R19: the global batch would silently be another one. Refused before anything is loaded, and nothing set aside."""
    started = killed.tiny(1)
    assert started.wait() == [1]
    text = started.text()
    assert "saved with 2 ranks x micro batch 4 x accumulation 1 = global batch 8; now 1 rank x micro batch 4" in text
    assert "Global batch 8 is 2 accumulated batches of 1 rank x micro batch 4" in text
    assert not list(killed.run.glob("*/quarantine.json"))
    run_dir = killed.new_run_dir("third", 1)
    ends = killed.finish(1, elastic="keep_global_batch", batch=8, env={"RELUME_RUN_DIR": str(run_dir)})
    assert ends[0]["steps"] == 18
    record = next(event for event in killed.events(run_dir, 0) if event["kind"] == "verification")
    outcomes = {check["name"]: check["outcome"] for check in record["checks"]}
    assert record["outcome"] == outcomes["layout"] == "RESHARDED"
    assert (outcomes["parameters"], outcomes["optimizer"], outcomes["learning_rate"]) == ("PASS", "PASS", "PASS")
    assert {name for name, outcome in outcomes.items() if outcome == "DEGRADED"} == {"data_position", "random_state"}


def test_the_learning_rate_follows_the_global_batch_where_that_is_the_policy(killed: World) -> None:
    """Two ranks x 4, then one x 4: half the rate from the first step on, on the same curve, and in the next attempt."""
    plain = killed.finish(2, plain=True)
    ends = killed.finish(1, elastic="scale_lr:linear", total=14)
    again = killed.finish(1, total=18)
    rates = [float.fromhex(end["lr"]) for end in (plain[0], again[0])]
    assert [end["steps"] for end in (ends[0], again[0])] == [14, 18]
    assert rates[1] == pytest.approx(0.5 * rates[0])


def test_a_global_batch_that_cannot_be_kept_is_said(killed: World) -> None:
    """R19: 64 samples were consumed, 8 at a time; 12 at a time go on at the 65th, and the verification names both."""
    started = killed.tiny(1, elastic="keep_global_batch", batch=3)
    assert started.wait() == [1]
    assert "Global batch 8 cannot be kept with 1 rank x micro batch 3: 6 or 9" in started.text()
    run_dir = killed.new_run_dir("third", 1)
    killed.finish(1, elastic="keep_lr", batch=12, env={"RELUME_RUN_DIR": str(run_dir)})
    checks = next(event for event in killed.events(run_dir, 0) if event["kind"] == "verification")["checks"]
    (batch,) = [check for check in checks if check["name"] == "global_batch"]
    assert (batch["outcome"], batch["expected"], batch["actual"]) == ("DEGRADED", 8, 12)


def test_an_optimizer_that_was_not_saved_is_not_quietly_fresh(killed: World) -> None:
    """R11: a missing part is an error that names it, not a resume."""
    folder = killed.run / "step-00000008.g1"
    for rank in (0, 1):
        forge(folder, rank, lambda data: data["state"].update(optimizer_state_dit=data["state"].pop("optimizer")))
    started = killed.tiny(2)
    assert started.wait() == [1, 1]
    assert "not in the checkpoint: ['optimizer']; only in the checkpoint: ['optimizer_state_dit']" in started.text()
    assert not (folder / "quarantine.json").exists()


def test_parameters_that_are_not_finite_are_never_committed(world: World) -> None:
    """R27: the state goes bad after step 5; the checkpoint of step 4 stays the newest."""
    started = world.tiny(2, nan_at=5, total=10, exact=False)
    assert started.wait() == [0, 0], started.text()
    assert generations.accepted_folders(world.run) == ["step-00000004.g1"]
    reason = json.loads((world.run / "step-00000008.g1" / "quarantine.json").read_text())["reason"]
    assert reason == "parameters are not finite on ranks [0, 1]"


def test_the_newest_three_are_kept_and_the_verified_one(world: World) -> None:
    world.finish(2, total=16, every=2)
    assert generations.accepted_folders(world.run) == [f"step-{step:08d}.g1" for step in (16, 14, 12)]
    world.finish(2, total=17, every=2, epochs=4)
    world.finish(2, total=26, every=2, epochs=4)
    kept = [f"step-{step:08d}.g3" for step in (26, 24, 22)]
    assert generations.accepted_folders(world.run) == [*kept, "step-00000017.g2"]
    assert not list(world.run.glob(".trash-*"))


def test_a_half_removed_folder_is_cleared_by_the_next_attempt(killed: World) -> None:
    shutil.copytree(killed.run / "step-00000004.g1", killed.run / ".trash-step-00000002.g1")
    killed.finish(2)
    assert not list(killed.run.glob(".trash-*"))


def test_what_a_superseded_attempt_left_half_saved_is_cleared_before_the_first_save(killed: World) -> None:
    """A save that filled the disk must not fill it for every attempt after it: this one ends before it saves at all."""
    (killed.run / "step-00000099.g1").mkdir()
    (killed.run / "step-00000099.g1" / "rank-00000.d").write_bytes(b"x" * 4096)
    started = killed.tiny(2, env={"RELUME_SABOTAGE": "rng"})
    assert started.wait() == [77, 77], started.text()
    assert not (killed.run / "step-00000099.g1").exists()
    assert generations.accepted_folders(killed.run), "what was committed stays"
