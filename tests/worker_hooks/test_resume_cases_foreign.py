"""Resume cases R20, R24, R28 and relatives in the files of other programs, as `relume checkpoints list` sees them."""

import os
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.cli.checkpoints_list import listing

pytestmark = pytest.mark.pure
NOW = 1_796_000_000.0
SHARD = 1000
GOOD = {"step_100/shard_0.pt": SHARD, "step_100/shard_1.pt": SHARD}


def foreign(folder: Path, files: dict[str, int | str], times: dict[str, float] | None = None) -> dict[str, Any]:
    """`files`: a size or a text each; `times`: by name, everything else was written at NOW."""
    for name, what in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(what.encode() if isinstance(what, str) else bytes(what))
    for path in [folder, *folder.rglob("*")]:
        at = (times or {}).get(path.relative_to(folder).parts[0] if path != folder else "", NOW)
        os.utime(path, (at, at))
    found: dict[str, Any] = listing(folder, NOW)["foreign"]
    return found


@pytest.mark.parametrize(
    ("files", "step", "problem"),
    [
        ({"step_200/shard_0.pt": SHARD, "step_200/shard_1.pt": 0}, 100, "shard_1.pt: zero bytes"),
        (
            {"step_200/shard_0.pt": SHARD, "step_200/shard_1.pt": 990},
            100,
            "990 bytes, the longest of its kind has 1000",
        ),
        ({"step_200/shard_0.pt.tmp": SHARD, "step_300/shard_1.pt.part": 7}, 100, "left by a write that did not end"),
        ({"step_200/shard_0.pt": 0, "step_200/_COMMITTED": 64, "step_100/_COMMITTED": 64}, 100, "zero bytes"),
        ({"step_200/shard_0.pt": SHARD, "step_100/_COMMITTED": 64}, 100, None),
        ({"step_200/trainer_state.json": "", "step_200/optimizer.pt": 9}, 100, "trainer_state.json"),
        ({"step_200/model.distcp": SHARD}, 100, ".metadata is missing"),
    ],
)
@pytest.mark.parametrize("newest_is", ["good", "bad"])
def test_the_highest_whole_set_whatever_the_times_say(
    tmp_path: Path, files: dict[str, int | str], step: int, problem: str | None, newest_is: str
) -> None:
    """R20: also with a clock in the future."""
    future = "step_100" if newest_is == "good" else "step_200"
    found = foreign(tmp_path, GOOD | files, {future: NOW + 1e7})
    assert found["resume"]["step"] == step
    bad = [item for item in found["checkpoints"] if item["path"].endswith("step_200")]
    assert all(not item["usable"] for item in bad)
    assert problem is None or any(problem in said for item in bad for said in item["problems"])


def test_nothing_but_bad_sets_gives_none(tmp_path: Path) -> None:
    found = foreign(tmp_path, {"step_200/shard_0.pt": 0, "step_100/shard_0.pt.tmp": 10})
    assert (found["resume"]["path"], found["resume"]["step"]) == (None, None)


def test_a_hole_in_the_numbers_is_said(tmp_path: Path) -> None:
    files: dict[str, int | str] = {"step_200/shard_0.pt": SHARD, "step_200/shard_2.pt": SHARD}
    notes = {Path(item["path"]).name: item["notes"] for item in foreign(tmp_path, GOOD | files)["checkpoints"]}
    assert "shard_#.pt: 2 of the numbers 0 to 2" in notes["step_200"] and len(notes["step_100"]) == 1


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("step_100", False),
        ("./step_100", False),
        ("step_100/", False),
        ("100", False),
        ("0000100", False),
        ("step_99", True),
        ("99", True),
        ("", True),
        ("../other/step_100", True),
        ("/elsewhere/step_100", True),
        ("no such thing", True),
    ],
)
@pytest.mark.parametrize("name", ["latest", "LATEST", "latest_checkpointed_iteration.txt"])
def test_a_pointer_is_compared_and_never_followed(tmp_path: Path, name: str, text: str, stale: bool) -> None:
    """R24: however it is spelled."""
    found = foreign(tmp_path, {**GOOD, "step_99/shard_0.pt": SHARD, name: text}, {"step_99": NOW - 60})
    assert found["resume"]["step"] == 100
    assert [alarm.startswith(f"{name} says") for alarm in found["alarms"]] == [True] * stale


@pytest.mark.parametrize("later", [0.0, 900.0, 9e6])
def test_a_lower_step_that_was_written_later_is_an_alarm(tmp_path: Path, later: float) -> None:
    """R28: `last.ckpt` of step 61240 beside a newer one of step 512; without a difference in time nobody can say."""
    files: dict[str, int | str] = {"step_61240/shard_0.pt": SHARD, "step_512/shard_0.pt": SHARD}
    found = foreign(tmp_path, files, {"step_512": NOW + later})
    assert found["resume"]["step"] == 61240
    assert any("restarted from scratch" in alarm for alarm in found["alarms"]) == (later > 0)
