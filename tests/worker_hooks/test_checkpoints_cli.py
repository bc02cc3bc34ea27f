"""`relume checkpoints list|verify|prune` on folders of ours, without torch."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_hooks.checkpoint_shelf import NOW, RUN_ID, TENSORS, Shelf, flip
from worker_hooks.cli import checkpoints_pieces, checkpoints_prune, checkpoints_text, checkpoints_verify
from worker_hooks.cli.checkpoints_list import lines, listing
from worker_hooks.cli.checkpoints_places import look
from worker_hooks.cli.main import main
from worker_hooks.protocol import generations, trash
from worker_hooks.protocol.leases import being_read, reading
from worker_hooks.protocol.retention_rule import Folder, decide

pytestmark = pytest.mark.pure


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def run_of(shelf: Shelf) -> dict[str, Any]:
    (run,) = listing(shelf.run, NOW)["runs"]
    found: dict[str, Any] = run
    return found


def states(shelf: Shelf) -> dict[str, str]:
    return {item["folder"]: item["state"] for item in run_of(shelf)["checkpoints"]}


# --- list ---------------------------------------------------------------------------------------------------------


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


def test_without_a_generation_file_nothing_counts(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    (shelf.run / "generations" / "000001.json").unlink()
    assert states(shelf) == {"step-00000010.g1": "superseded"}
    assert run_of(shelf)["resume"]["folder"] is None


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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("flip", "cut", "zeros", "folder", "gone")))
def test_whatever_is_damaged_the_list_comes_and_verify_never_calls_it_good(
    tmp_path_factory: pytest.TempPathFactory, seed: int, damage: str
) -> None:
    shelf = Shelf(tmp_path_factory.mktemp("any"))
    shelf.mint()
    folder = shelf.commit(10, 1, (TENSORS, TENSORS), verified=True)
    chance = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "verified.json")
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    before = bytes(data)
    if damage == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif damage == "cut":
        del data[chance.randrange(len(data)) :]
    elif damage == "zeros":
        data = bytearray(len(data))
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(data)
    assert "".join(lines(listing(shelf.run, NOW)))
    checked = verify(folder)["checkpoints"]
    if path.name == "manifest.json":
        return  # nothing holds its digest: a bit of its time may flip unseen
    assert bytes(data) == before or [item["result"] for item in checked] == ["bad"]


# --- verify -------------------------------------------------------------------------------------------------------


def verify(directory: Path, **options: Any) -> dict[str, Any]:
    return checkpoints_verify.verification(
        look(directory), **{"everything": False, "limit": None, "progress": False, **options}
    )


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("algorithm", ["sha256", "crc32"])
def test_what_is_whole_verifies(shelf: Shelf, version: int, algorithm: str) -> None:
    shelf.mint()
    shelf.commit(10, 1, (TENSORS, TENSORS), index_version=version, algorithm=algorithm)
    found = verify(shelf.run)
    assert [item["result"] for item in found["checkpoints"]] == ["good"]
    assert checkpoints_verify.exit_code(found) == 0
    assert found["checkpoints"][0]["files"] == 6 and found["bytes"] > 2 * 80


@pytest.mark.parametrize(("offset", "tensors"), [(3, ["model/weight"]), (64, ["optimizer/weight/exp_avg"]), (40, [])])
def test_a_flipped_bit_names_the_file_and_the_tensor(shelf: Shelf, offset: int, tensors: list[str]) -> None:
    """Byte 40 is padding: the file is bad, no tensor is."""
    shelf.mint()
    folder = shelf.commit(10, 1, (TENSORS, TENSORS))
    flip(folder / "rank-00001.d" / "tensors.bin", offset)
    found = verify(shelf.run)
    (item,) = found["checkpoints"]
    assert (item["result"], item["tensors"]) == ("bad", tensors)
    assert item["problems"] == ["rank-00001.d/tensors.bin does not match its digest"]
    assert checkpoints_verify.exit_code(found) == 1


@pytest.mark.parametrize("name", ["rank-00000.json", "rank-00000.d/index.json", "rank-00000.d/tensors.bin"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_of_every_file_is_found(shelf: Shelf, name: str, damage: str) -> None:
    shelf.mint()
    path = shelf.commit(10, 1) / name
    if damage == "flip":
        flip(path, path.stat().st_size // 2)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    (item,) = verify(shelf.run)["checkpoints"]
    assert item["result"] == "bad" and any(Path(name).name in problem for problem in item["problems"])


def test_pieces_of_any_length_give_the_same_word(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that lies in many pieces, and pieces that hold many tensors."""
    tensors = {f"model/{n}": ("uint8", (n,), bytes(n % 251 for _ in range(n))) for n in (0, 1, 63, 64, 65, 300)}
    shelf.mint()
    folder = shelf.commit(10, 1, (tensors,))
    for piece in (1, 7, 64, 1000):
        monkeypatch.setattr(checkpoints_pieces, "PIECE", piece)
        assert verify(shelf.run)["checkpoints"][0]["result"] == "good"
    flip(folder / "rank-00000.d" / "tensors.bin", (folder / "rank-00000.d" / "tensors.bin").stat().st_size - 1)
    assert verify(shelf.run)["checkpoints"][0]["tensors"] == ["model/300"]


def test_what_does_not_count_is_skipped_unless_asked_for(shelf: Shelf) -> None:
    shelf.mint()
    bad = shelf.commit(10, 1)
    flip(bad / "rank-00000.d" / "tensors.bin", 0)
    generations.quarantine(bad, reason="a flipped bit", generation=1, now=NOW)
    assert checkpoints_verify.exit_code(verify(shelf.run)) == 2  # nothing was checked
    shelf.commit(20, 1)
    found = verify(shelf.run)
    assert checkpoints_verify.exit_code(found) == 0
    assert [item["folder"] for item in found["skipped"]] == ["step-00000010.g1"]
    assert checkpoints_verify.exit_code(verify(shelf.run, everything=True)) == 1
    assert checkpoints_verify.exit_code(verify(bad)) == 1


def test_a_copy_elsewhere_verifies_and_nothing_is_left_beside_it(shelf: Shelf, tmp_path: Path) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    (tmp_path / "backup").mkdir()
    copy = folder.rename(tmp_path / "backup" / folder.name)
    assert [item["result"] for item in verify(copy)["checkpoints"]] == ["good"]
    assert [entry.name for entry in (tmp_path / "backup").iterdir()] == [folder.name]


def test_retention_leaves_what_is_being_verified_alone(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    seen: list[set[str]] = []
    real = checkpoints_verify.pieces

    def look_meanwhile(*args: Any) -> Any:
        seen.append(being_read(shelf.run))
        return real(*args)

    monkeypatch.setattr(checkpoints_verify, "pieces", look_meanwhile)
    assert checkpoints_verify.exit_code(verify(shelf.run)) == 0
    assert seen == [{folder.name}] * 3 and being_read(shelf.run) == set()


def test_progress_is_one_line_on_standard_error(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    monkeypatch.setattr(checkpoints_verify, "_BLINK_S", -1.0)
    verify(shelf.run, progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "%" in captured.err and "\n" not in captured.err


def test_a_limit_makes_it_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: sum(rests))
    monkeypatch.setattr("time.sleep", rests.append)
    pace = checkpoints_pieces.Pace(limit=100.0)
    for _ in range(4):
        pace.read(50)
    assert rests == pytest.approx([0.5] * 4)


def test_a_missing_package_is_named(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    xxhash = pytest.importorskip("xxhash")
    shelf.mint()
    folder = shelf.commit(10, 1)
    path = folder / "rank-00000.json"
    rank = json.loads(path.read_bytes())
    for entry in rank["files"]:
        entry["digest"] = "xxh3_128:" + xxhash.xxh3_128((folder / entry["name"]).read_bytes()).hexdigest()
    path.write_text(json.dumps(rank))
    (folder / "manifest.json").unlink()
    assert main(["checkpoints", "verify", str(shelf.run)]) == 0
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert main(["checkpoints", "verify", str(shelf.run)]) == 2
    assert "pip install xxhash" in capsys.readouterr().err


# --- prune --------------------------------------------------------------------------------------------------------


def prune(shelf: Shelf, keep: int, now: float = NOW, **options: Any) -> dict[str, Any]:
    wanted = {"do_it": False, "quarantined": False, "force": None, **options}
    found = checkpoints_prune.pruning(look(shelf.run), checkpoints_prune.Options(keep, **wanted), now)
    (run,) = found["runs"]
    result: dict[str, Any] = run
    return result


def names(run: Path) -> set[str]:
    return {entry.name for entry in run.iterdir() if entry.name.startswith((".trash", "step-"))}


def test_prune_shows_and_does_nothing_without_yes(shelf: Shelf) -> None:
    shelf.mint()
    for step in (10, 20, 30):
        shelf.commit(step, 1)
    before = names(shelf.run)
    found = prune(shelf, 1)
    assert [item["folder"] for item in found["goes"]] == ["step-00000020.g1", "step-00000010.g1"]
    assert found["frees_bytes"] > 160 and names(shelf.run) == before


def test_the_two_newest_verified_stay_and_those_being_read(shelf: Shelf) -> None:
    shelf.mint()
    for step in range(10, 80, 10):
        shelf.commit(step, 1, verified=step in (10, 20, 30))
    shelf.date(86400.0)
    with reading(shelf.run / "step-00000050.g1"):
        found = prune(shelf, 1, do_it=True)
    assert sorted(found["removed"]) == ["step-00000010.g1", "step-00000040.g1", "step-00000060.g1"]
    assert names(shelf.run) == {f"step-{step:08d}.g1" for step in (20, 30, 50, 70)}
    record = json.loads((shelf.run / "pruned.jsonl").read_text())
    assert record["removed"] == found["removed"] and record["forced"] is None
    assert run_of(shelf)["resume"]["step"] == 70


def test_quarantined_ones_stay_unless_asked_for(shelf: Shelf) -> None:
    shelf.mint()
    generations.quarantine(shelf.commit(10, 1), reason="bad", generation=1, now=NOW - 86400)
    shelf.commit(20, 1)
    shelf.date(86400.0)
    assert prune(shelf, 1, do_it=True)["removed"] == []
    assert prune(shelf, 1, do_it=True, quarantined=True)["removed"] == ["step-00000010.g1"]
    assert names(shelf.run) == {"step-00000020.g1"}


def test_what_superseded_attempts_left_goes_and_what_the_newest_writes_stays(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    (shelf.write(20, 1) / "rank-00000.json").unlink()
    shelf.mint()
    (shelf.write(30, 2) / "rank-00000.json").unlink()
    (shelf.run / ".trash-step-00000005.g1.ab12cd34").mkdir()
    shelf.date(86400.0)
    found = prune(shelf, 3, do_it=True)
    assert found["removed"] == ["step-00000020.g1", ".trash-step-00000005.g1.ab12cd34"]
    assert names(shelf.run) == {"step-00000010.g1", "step-00000030.g2"}


@pytest.mark.parametrize("fresh", ["generations/000001.json", "losses/rank-00000.g1.jsonl", "step-00000020.g1"])
def test_an_attempt_that_may_live_is_left_alone_unless_forced_with_a_reason(shelf: Shelf, fresh: str) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    shelf.commit(20, 1)
    (shelf.run / "losses").mkdir()
    (shelf.run / "losses" / "rank-00000.g1.jsonl").touch()
    shelf.date(86400.0)
    os.utime(shelf.run / fresh, (NOW - 600, NOW - 600))
    found = prune(shelf, 1, do_it=True)
    assert found["removed"] == [] and "10.0 min ago" in found["refused"]
    assert names(shelf.run) == {"step-00000010.g1", "step-00000020.g1"}
    assert prune(shelf, 1, do_it=True, force="the job is gone, squeue is empty")["removed"] == ["step-00000010.g1"]
    assert json.loads((shelf.run / "pruned.jsonl").read_text())["forced"] == "the job is gone, squeue is empty"


def test_nothing_goes_where_nobody_can_tell_what_counts(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    shelf.commit(20, 1)
    (shelf.run / "generations" / "000001.json").write_text("{")
    shelf.date(86400.0)
    found = prune(shelf, 1, do_it=True, force="sure")
    assert found["goes"] == [] and found["removed"] == [] and len(names(shelf.run)) == 2


def test_a_generation_minted_meanwhile_stops_it(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.mint()
    for step in (10, 20, 30):
        shelf.commit(step, 1)
    real = trash.remove

    def remove_and_mint(folder: Path) -> bool:
        gone = real(folder)
        shelf.mint()
        return gone

    monkeypatch.setattr(trash, "remove", remove_and_mint)
    found = prune(shelf, 1, do_it=True)
    assert found["removed"] == ["step-00000020.g1"] and "superseded by generation 2" in found["refused"]
    assert names(shelf.run) == {"step-00000010.g1", "step-00000030.g1"}


def test_shared_files_come_free_with_their_last_name(shelf: Shelf) -> None:
    one, other = shelf.run / "one", shelf.run / "other"
    one.mkdir()
    other.mkdir()
    (one / "kept.bin").write_bytes(b"x" * 100)
    os.link(one / "kept.bin", other / "kept.bin")
    assert checkpoints_prune.freed([one]) == 0
    assert checkpoints_prune.freed([one, other]) == 100


def test_damaged_ones_do_not_count_towards_those_kept() -> None:
    folders = [
        Folder("c", 3, 1, counts=True, damaged=True),
        Folder("b", 2, 1, counts=True),
        Folder("a", 1, 1, counts=True),
    ]
    verdicts = decide(folders, newest_generation=1, keep=1)
    assert [(verdict.name, verdict.goes) for verdict in verdicts] == [("c", False), ("b", False), ("a", True)]


def test_a_reader_that_comes_during_the_removal_keeps_the_folder(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    asked = iter([set(), {folder.name}])
    monkeypatch.setattr(trash, "being_read", lambda run: next(asked))
    assert trash.remove(folder) is False
    assert generations.read_manifest(folder).step == 10


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly", "/tmp"],
        ["prune", "/tmp"],
        ["prune", "/tmp", "--keep", "0"],
        ["verify", "/tmp", "--limit", "-1"],
        ["diff", "/tmp"],
    ],
)
def test_what_is_not_understood_is_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", *argv])
    assert ended.value.code == 2


@pytest.mark.parametrize("command", [["list"], ["verify"], ["prune", "--keep", "2"]])
def test_a_directory_that_is_not_there_is_2(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", command[0], str(tmp_path / "none"), *command[1:]]) == 2
    assert "No such file" in capsys.readouterr().err


def test_prune_refuses_one_checkpoint_and_a_force_without_reason(shelf: Shelf) -> None:
    shelf.mint()
    folder = shelf.commit(10, 1)
    assert main(["checkpoints", "prune", str(folder), "--keep", "1"]) == 2
    assert main(["checkpoints", "prune", str(shelf.run), "--keep", "1", "--force", " "]) == 2


def test_list_verify_and_prune_never_import_torch(shelf: Shelf) -> None:
    shelf.mint()
    shelf.commit(10, 1)
    code = (
        "import sys; from worker_hooks.cli.main import main\n"
        "for command in (['list'], ['verify'], ['prune', '--keep', '1']):\n"
        f"    assert main(['checkpoints', command[0], {str(shelf.run)!r}, *command[1:]]) == 0\n"
        "bad = {'torch', 'numpy', 'pickle', 'django'} & set(sys.modules)\n"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 60, "1024.0 PiB")])
def test_sizes(count: int, text: str) -> None:
    assert checkpoints_text.size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (-1, "0 s"), (90, "1.5 min"), (86400, "1.0 d")])
def test_ages(seconds: float | None, text: str) -> None:
    assert checkpoints_text.age(seconds) == text
