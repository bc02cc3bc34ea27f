"""`relume checkpoints list` on folders of ours, without torch."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.checkpoint_shelf import NOW, RUN_ID, TENSORS, Shelf, run_of
from worker_hooks.cli.checkpoints_list import lines, listing
from worker_hooks.cli.main import main
from worker_hooks.protocol import generations

pytestmark = pytest.mark.pure


def states(shelf: Shelf) -> dict[str, str]:
    return {item["folder"]: item["state"] for item in run_of(shelf)["checkpoints"]}


def test_every_state_has_its_name_and_its_reason(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    late = shelf.write(15, 1)
    shelf.write(12, 1)
    (late / "rank-00000.json").rename(late / "aside")  # incomplete, so that the next attempt does not commit it
    shelf.mint()
    (late / "aside").rename(late / "rank-00000.json")
    shelf.commit(20, 2, verified=True)
    generations.quarantine(shelf.commit(25, 2), reason="a flipped bit", generation=2, now=NOW)
    (shelf.commit(30, 2) / "rank-00000.d" / "tensors.bin").write_bytes(b"short")
    (shelf.write(35, 2, (TENSORS, TENSORS)) / "rank-00001.json").unlink()
    shelf.write(40, 2)
    (shelf.run / ".trash-step-00000005.g1.ab12cd34").mkdir()
    found = {item["folder"]: item for item in run_of(shelf)["checkpoints"]}
    assert {name: item["state"] for name, item in found.items()} == {
        "step-00000040.g2": "complete",
        "step-00000035.g2": "incomplete",
        "step-00000030.g2": "damaged",
        "step-00000025.g2": "quarantined",
        "step-00000020.g2": "committed",
        "step-00000015.g1": "superseded",
        "step-00000012.g1": "committed",
        "step-00000010.g1": "committed",
        ".trash-step-00000005.g1.ab12cd34": "trash",
    }
    assert found["step-00000035.g2"]["missing"] == ["rank-00001.json is missing"]
    assert found["step-00000030.g2"]["reason"] == "rank-00000.d/tensors.bin has 5 bytes, 80 were written"
    assert found["step-00000025.g2"]["reason"] == "a flipped bit"
    assert found["step-00000015.g1"]["reason"] == "generation 2 did not accept it"
    assert [item["verified"] for item in found.values()].count(True) == 1 and found["step-00000020.g2"]["verified"]
    assert (found["step-00000020.g2"]["age_s"], found["step-00000020.g2"]["world_size"]) == (3600.0, 1)


def test_a_resume_takes_the_newest_that_counts_and_says_why(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    (shelf.commit(30, 1) / "rank-00000.d" / "tensors.bin").unlink()
    resume = run_of(shelf)["resume"]
    assert resume["folder"] == "step-00000010.g1"
    assert resume["why"] == "the newest that counts; walks past step-00000030.g1 (damaged)"
    shelf.write(40, 1)
    assert run_of(shelf)["resume"]["folder"] == "step-00000040.g1"
    shelf.mint()  # what the list foretold
    assert generations.accepted_folders(shelf.run)[0] == "step-00000040.g1"


def test_r24_the_highest_committed_step_counts_and_a_stale_pointer_is_named(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(39999, 1)
    shelf.commit(49999, 1)
    (shelf.run / "latest").write_text("step-00039999.g1\n")
    run = run_of(shelf)
    assert run["resume"]["step"] == 49999
    assert run["latest"] == {"says": "step-00039999.g1", "agrees": False}
    assert any("latest says 'step-00039999.g1'" in line for line in lines(listing(shelf.run, NOW)))


def test_a_later_attempt_that_began_below_a_good_checkpoint_is_told(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(100, 1)
    shelf.mint()
    shelf.commit(20, 2)
    assert run_of(shelf)["problems"] == [
        "generation 2 saved step 20 although step 100 counted: began from an older state"
    ]
    assert run_of(shelf)["resume"]["step"] == 100


def test_a_generation_file_that_is_gone_costs_no_checkpoint(shelf: Shelf) -> None:
    """As the next attempt takes it; and nothing is removed by what nobody knows."""
    shelf.mint()
    shelf.commit(10, 1)
    (shelf.run / "generations" / "000001.json").unlink()
    assert states(shelf) == {"step-00000010.g1": "committed"}
    assert run_of(shelf)["resume"]["folder"] == "step-00000010.g1"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 200_000])
@pytest.mark.parametrize(
    "name", ["manifest.json", "rank-00000.json", "quarantine.json", "verified.json", "../generations/000001.json"]
)
def test_broken_json_is_named_and_never_a_crash(shelf: Shelf, name: str, content: bytes) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    (folder / name).write_bytes(content)
    run = run_of(shelf)
    (item,) = run["checkpoints"]
    said = " ".join([*run["problems"], *item["problems"], *item["missing"]])
    assert Path(name).name in said or "generation file" in said


def test_a_file_where_a_folder_belongs_and_folders_that_cannot_be_read_are_named(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    (shelf.run / "step-00000020.g1").write_text("no folder")
    shelf.commit(30, 1)
    real = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "step-00000030.g1":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = {item["folder"]: item for item in run_of(shelf)["checkpoints"]}
    assert found["step-00000020.g1"]["state"] == "unreadable" and found["step-00000010.g1"]["state"] == "committed"
    assert found["step-00000030.g1"]["reason"] == "step-00000030.g1: Permission denied"


def test_a_root_lists_its_runs_and_names_what_is_neither(shelf: Shelf, tmp_path: Path) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "notes\x1b[2J.txt").write_text("mine")
    found = listing(tmp_path, NOW)
    assert [run["run_id"] for run in found["runs"]] == [RUN_ID]
    assert found["others"] == ["notes\x1b[2J.txt"]
    assert "\x1b" not in "".join(lines(found))


def test_one_checkpoint_by_itself(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    folder = shelf.commit(20, 1)
    (run,) = listing(folder, NOW)["runs"]
    assert [item["folder"] for item in run["checkpoints"]] == [folder.name]


def test_the_table_marks_what_a_resume_takes(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    shelf.commit(20, 1, verified=True)
    assert main(["checkpoints", "list", str(shelf.run)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["STEP", "GEN", "STATE", "VERIFIED", "AGE", "SIZE", "RANKS", "FOLDER", "NOTE"]
    assert out[2].startswith(">  20") and "yes" in out[2] and "step-00000020.g1" in out[2]
    assert out[3].startswith("   10") and out[-1].startswith("resume takes: step-00000020.g1")
    assert main(["checkpoints", "list", str(shelf.run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1


def test_the_text_is_golden(shelf: Shelf) -> None:
    """What people and their scripts have got used to; change it on purpose only."""
    shelf.mint(world_size=2)
    shelf.commit(100, 1, (TENSORS, TENSORS))
    (shelf.commit(200, 1, (TENSORS, TENSORS)) / "rank-00001.d" / "tensors.bin").unlink()
    shelf.mint(world_size=1)
    shelf.commit(300, 2, verified=True)
    generations.quarantine(shelf.commit(400, 2), reason="rank-00000.d/tensors.bin: a bit", generation=2, now=NOW)
    (shelf.write(500, 2, (TENSORS, TENSORS)) / "rank-00001.json").unlink()
    (shelf.run / "latest").write_text("step-00000400.g2\n")
    shelf.date(7200.0)
    text = "\n".join(lines(listing(shelf.run, NOW))).replace(str(shelf.run.parent), "ROOT") + "\n"
    text = re.sub(r"\d\.\d KiB", "#.# KiB", text)  # a key more in the files is no other text
    assert text == (Path(__file__).parent / "golden" / "checkpoints_list.txt").read_text()
