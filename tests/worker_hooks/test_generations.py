"""Minting, acceptance and commit on a real file system, without torch. Damaged files: test_generations_damaged."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.worker_hooks.run_folder import mint, run, write_folder, write_rank
from worker_hooks.protocol import committing, generations, minting
from worker_hooks.protocol.durable import create_file
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.manifest import rank_file_name, rank_folder_name

pytestmark = pytest.mark.pure
__all__ = ["run"]


def test_generations_count_up_and_the_newest_holds_the_token(run: Path) -> None:
    assert generations.newest(run) is None
    assert [mint(run).generation, mint(run).generation] == [1, 2]
    generations.check_token(run, 2)
    with pytest.raises(NotNewest, match="generation 1 was superseded by generation 2"):
        generations.check_token(run, 1)


def test_concurrent_mints_get_different_numbers(run: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: mint(run).generation, range(16)))
    assert sorted(numbers) == list(range(1, 17))
    assert not [entry for entry in (run / "generations").iterdir() if entry.name.startswith(".")]


def test_a_link_that_answers_exists_although_it_was_ours_counts_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def retransmitted(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", retransmitted)
    assert create_file(tmp_path / "a", b"mine")
    monkeypatch.setattr(os, "link", real)
    assert not create_file(tmp_path / "a", b"other")
    assert (tmp_path / "a").read_bytes() == b"mine"


def test_commit_needs_every_rank_file(run: Path) -> None:
    mint(run)
    folder = write_rank(run, 0, 10, 1)
    assert committing.commit_folder(folder, 1, now=2.0) is None
    assert generations.missing_ranks(folder, 2) == [1]
    write_rank(run, 1, 10, 1)
    manifest = committing.commit_folder(folder, 1, now=2.0)
    assert manifest is not None and manifest == generations.read_manifest(folder)
    assert generations.accepted_folders(run) == [folder.name]


@pytest.mark.parametrize("damage", ["short", "gone", "rank_file"])
def test_an_incomplete_folder_is_not_committed(run: Path, damage: str) -> None:
    mint(run)
    folder = write_folder(run, 10, 1)
    shard = folder / rank_folder_name(1) / "tensors.bin"
    if damage == "short":
        shard.write_bytes(b"1234")
    elif damage == "gone":
        shard.unlink()
    else:
        (folder / rank_file_name(1)).write_bytes(b"")
    assert committing.commit_complete(run, now=2.0) == []
    assert mint(run).accepted == ()


def test_the_successor_commits_a_complete_folder_before_it_lists(run: Path) -> None:
    mint(run)
    folder = write_folder(run, 10, 1)
    assert mint(run).accepted == (folder.name,)
    assert generations.accepted_folders(run) == [folder.name]


def test_a_rename_after_the_look_is_on_no_list(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer stopped between its look and its rename: its manifest appears and still does not count."""
    mint(run)
    good = write_folder(run, 10, 1)
    committing.commit_folder(good, 1, now=1.0)
    late = write_rank(run, 0, 20, 1)
    mint(run)
    write_rank(run, 1, 20, 1)
    monkeypatch.setattr(committing, "check_token", lambda *_: None)
    assert committing.commit_folder(late, 1, now=2.0) is not None
    assert (late / "manifest.json").exists()
    assert generations.accepted_folders(run) == [good.name]
    assert mint(run).accepted == (good.name,)


def test_a_superseded_generation_cannot_commit(run: Path) -> None:
    mint(run)
    folder = write_rank(run, 0, 20, 1)
    mint(run)
    write_rank(run, 1, 20, 1)
    with pytest.raises(NotNewest):
        committing.commit_folder(folder, 1, now=2.0)
    assert not (folder / "manifest.json").exists()


def test_newest_step_first_and_later_generation_among_equals(run: Path) -> None:
    mint(run)
    write_folder(run, 10, 1), write_folder(run, 20, 1)
    mint(run)
    write_folder(run, 20, 2)
    committing.commit_complete(run, now=2.0)
    assert generations.accepted_folders(run) == ["step-00000020.g2", "step-00000020.g1", "step-00000010.g1"]


def test_a_quarantined_folder_is_never_listed_again(run: Path) -> None:
    mint(run)
    folder = write_folder(run, 10, 1)
    committing.commit_complete(run, now=2.0)
    generations.quarantine(folder, reason="a bit flipped", generation=1, now=3.0)
    assert generations.accepted_folders(run) == []
    assert mint(run).accepted == ()
    assert json.loads((folder / "quarantine.json").read_text())["reason"] == "a bit flipped"


def test_a_follower_finds_only_its_own_jobs_generation(run: Path) -> None:
    mint(run, job={"slurm_job_id": "7", "restart_count": 0})
    assert generations.newest_of_job(run, {"slurm_job_id": "7", "restart_count": 1}) is None
    mint(run, job={"slurm_job_id": "7", "restart_count": 1})
    found = generations.newest_of_job(run, {"slurm_job_id": "7", "restart_count": 1})
    assert found is not None and found.generation == 2


def test_what_the_superseded_attempt_did_while_the_next_one_was_minted_is_not_lost(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minter hangs between its list and its file; the old attempt, still alive, commits and prunes meanwhile."""
    mint(run)
    committing.commit_folder(write_folder(run, 100, 1), 1, now=1.0)

    def hanging(path: Path, data: bytes) -> bool:
        monkeypatch.undo()
        committing.commit_folder(write_folder(run, 200, 1), 1, now=2.0)
        generations.check_token(run, 1)
        shutil.rmtree(run / "step-00000100.g1")
        return create_file(path, data)

    monkeypatch.setattr(minting, "create_file", hanging)
    made = mint(run)
    assert made.accepted == ("step-00000200.g1",) == tuple(generations.accepted_folders(run))
    assert made == generations.newest(run)
