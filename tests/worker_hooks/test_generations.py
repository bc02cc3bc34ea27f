"""Minting, acceptance and commit on a real file system, without torch."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.protocol import committing, generations, minting
from worker_hooks.protocol.durable import create_file, encode_json
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.manifest import (
    Broken,
    FileEntry,
    RankFile,
    encode_rank_file,
    folder_name,
    rank_file_name,
    rank_folder_name,
    sealed,
)
from worker_hooks.protocol.messages import MessageError

pytestmark = pytest.mark.pure

RUN_ID = "tj-4f2a9c0b11de"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generations.run_folder(tmp_path, RUN_ID)


def mint(run: Path, **changes: Any) -> generations.Generation:
    return minting.mint(run, **{"node": "gpu1", "world_size": 2, "now": 1.0, **changes})


def write_rank(run: Path, rank: int, step: int, generation: int, world_size: int = 2) -> Path:
    folder = run / folder_name(step, generation)
    data = folder / rank_folder_name(rank)
    data.mkdir(parents=True)
    (data / "tensors.bin").write_bytes(b"12345678")
    entry = FileEntry(f"{rank_folder_name(rank)}/tensors.bin", 8, "crc32:9ae0daaf")
    content = RankFile(
        rank=rank,
        generation=generation,
        step=step,
        files=(entry,),
        random={},
        data={},
        fingerprint={"step": step},
        state={},
        losses=(),
        run={"world_size": world_size, "digest_algorithm": "crc32", "threads": 1},
    )
    (folder / rank_file_name(rank)).write_bytes(encode_json(encode_rank_file(content)))
    return folder


def write_folder(run: Path, step: int, generation: int) -> Path:
    write_rank(run, 0, step, generation)
    return write_rank(run, 1, step, generation)


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


def test_a_manifest_copied_from_elsewhere_is_refused(run: Path) -> None:
    mint(run)
    folder = write_folder(run, 10, 1)
    committing.commit_complete(run, now=2.0)
    other = run / folder_name(30, 1)
    folder.rename(other)
    with pytest.raises(MessageError, match="belongs to"):
        generations.read_manifest(other)


def test_a_follower_finds_only_its_own_jobs_generation(run: Path) -> None:
    mint(run, job={"slurm_job_id": "7", "restart_count": 0})
    assert generations.newest_of_job(run, {"slurm_job_id": "7", "restart_count": 1}) is None
    mint(run, job={"slurm_job_id": "7", "restart_count": 1})
    found = generations.newest_of_job(run, {"slurm_job_id": "7", "restart_count": 1})
    assert found is not None and found.generation == 2


@pytest.mark.parametrize(
    "broken",
    [{"world_size": 2}, {"digest_algorithm": None}, {"threads": None}, {"layout": None}, {"world_size": float("inf")}],
    ids=str,
)
def test_a_folder_whose_rank_file_is_damaged_does_not_stop_the_next_attempt(run: Path, broken: dict[str, Any]) -> None:
    mint(run)
    folder = write_folder(run, 100, 1)
    path = folder / rank_file_name(0)
    data = json.loads(path.read_bytes())
    data["run"] = broken if broken == {"world_size": 2} else data["run"] | broken
    path.write_text(json.dumps(data))
    write_folder(run, 200, 1)
    assert mint(run).accepted == ("step-00000200.g1",)


def test_a_folder_with_something_else_in_the_place_of_a_file_is_walked_past(run: Path) -> None:
    mint(run)
    folder = write_folder(run, 100, 1)
    (folder / rank_file_name(1)).unlink()
    (folder / rank_file_name(1)).mkdir()
    (run / folder_name(300, 1)).write_text("a file where a folder should be")
    deep = write_folder(run, 400, 1)
    (deep / rank_file_name(0)).write_text("[" * 100_000)
    write_folder(run, 200, 1)
    assert mint(run).accepted == ("step-00000200.g1",)


def test_a_generation_file_of_another_run_is_refused(run: Path) -> None:
    """Otherwise nothing would count, and the attempt would begin anew and remove what the run has."""
    mint(run)
    write_folder(run, 100, 1)
    path = run / "generations" / "000001.json"
    said = json.loads(path.read_text())
    del said["seal"]
    path.write_text(json.dumps(sealed(said | {"run_id": "tj-000000000000"})))
    with pytest.raises(MessageError, match="says 1 of tj-000000000000"):
        mint(run)


def flipped(data: bytes) -> bytes:
    """A bit of a name: still JSON, another checkpoint."""
    return data.replace(b"step-00000200.g1", b"step-00000201.g1")


@pytest.mark.parametrize("damage", [flipped, lambda data: data[:50], lambda _: b""], ids=["flipped", "cut", "empty"])
def test_a_broken_generation_file_costs_no_checkpoint(run: Path, damage: Callable[[bytes], bytes]) -> None:
    """Its number still holds the token; what it accepted is what counted before it. The next one says so."""
    mint(run)
    committing.commit_folder(write_folder(run, 200, 1), 1, now=1.0)
    mint(run)
    write_folder(run, 300, 2)
    path = run / "generations" / "000002.json"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Broken):
        generations.newest(run)
    made = mint(run)
    assert (made.generation, made.accepted) == (3, ("step-00000300.g2", "step-00000200.g1"))
    assert made.problem is not None and made.problem.startswith("generations/000002.json")
    assert generations.accepted_folders(run) == list(made.accepted)
    assert mint(run).problem is None


def test_every_generation_file_broken(run: Path) -> None:
    for step in (100, 200, 300):
        number = mint(run).generation
        committing.commit_folder(write_folder(run, step, number), number, now=1.0)
    for path in (run / "generations").iterdir():
        path.write_bytes(b"")
    assert mint(run).accepted == ("step-00000300.g3", "step-00000200.g2", "step-00000100.g1")


def test_what_an_older_writer_did_not_seal_is_read(run: Path) -> None:
    mint(run)
    folder = write_folder(run, 100, 1)
    committing.commit_folder(folder, 1, now=1.0)
    for path in (run / "generations" / "000001.json", folder / "manifest.json"):
        said = json.loads(path.read_text())
        del said["seal"]
        path.write_text(json.dumps(said))
    assert mint(run).accepted == ("step-00000100.g1",)
    assert generations.read_manifest(folder).step == 100


def test_a_flipped_bit_of_a_manifest_is_the_manifests(run: Path) -> None:
    """Without a seal the rank file would be accused."""
    mint(run)
    folder = write_folder(run, 100, 1)
    committing.commit_folder(folder, 1, now=1.0)
    path = folder / "manifest.json"
    said = json.loads(path.read_text())
    said["ranks"][0]["digest"] = "sha256:" + 64 * "0"
    path.write_text(json.dumps(said))
    with pytest.raises(Broken, match=r"manifest\.json: does not match its seal"):
        generations.read_manifest(folder)


def test_names_that_only_look_like_numbers_are_no_generations(run: Path) -> None:
    mint(run)
    (run / "generations" / "\u00b2.json").write_text("{}")
    assert generations.newest_number(run) == 1


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
