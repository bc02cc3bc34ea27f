"""`relume checkpoints prune` on folders of ours, without torch."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.checkpoint_shelf import NOW, Shelf, run_of
from worker_hooks.cli import checkpoints_prune
from worker_hooks.cli.checkpoints_places import look
from worker_hooks.protocol import generations, trash
from worker_hooks.protocol.leases import reading
from worker_hooks.protocol.retention_rule import Folder, decide

pytestmark = pytest.mark.pure


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
