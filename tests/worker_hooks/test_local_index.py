"""Node-local checkpoints on shared storage: an index that counts by the same rule, its bytes elsewhere. No torch."""

import json
import shutil
from pathlib import Path

import pytest

from tests.worker_hooks.checkpoint_shelf import RUN_ID
from worker_hooks.protocol import committing, generations, minting
from worker_hooks.protocol.durable import create_file, encode_json
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.manifest import (
    FileEntry,
    Generation,
    RankFile,
    accepts,
    decode_generation,
    encode_generation,
    encode_rank_file,
    folder_name,
    rank_file_name,
)
from worker_hooks.protocol.tiers import LOCAL, SHARED, run_of, shelf, tier_of

pytestmark = pytest.mark.pure

GOLDEN = Path(__file__).parent / "golden" / "generation-v1.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generations.run_folder(tmp_path, RUN_ID)


def mint(run: Path) -> Generation:
    return minting.mint(run, node="gpu1", world_size=2, now=1.0)


def write_rank(run: Path, rank: int, step: int, generation: int, *, finite: bool = True) -> Path:
    """What a rank says on shared storage about a share that lies on its node."""
    folder = shelf(run, LOCAL) / folder_name(step, generation)
    folder.mkdir(parents=True, exist_ok=True)
    content = RankFile(
        rank=rank,
        generation=generation,
        step=step,
        files=(FileEntry(f"rank-{rank:05d}.d/tensors.bin", 8, "crc32:9ae0daaf"),),
        random={},
        data={},
        fingerprint={"step": step, "finite": finite},
        state={},
        losses=(),
        run={"world_size": 2, "digest_algorithm": "crc32", "threads": 1},
        saving={"node": f"gpu{rank}", "copy": None},
    )
    (folder / rank_file_name(rank)).write_bytes(encode_json(encode_rank_file(content)))
    return folder


def write(run: Path, step: int, generation: int) -> Path:
    write_rank(run, 0, step, generation)
    return write_rank(run, 1, step, generation)


def test_a_folders_place_tells_its_tier(run: Path) -> None:
    shared, local = run / "step-00000010.g1", run / "local" / "step-00000010.g1"
    assert (tier_of(shared), tier_of(local)) == (SHARED, LOCAL)
    assert run_of(shared) == run_of(local) == run


def test_it_is_committed_when_every_rank_file_is_there_although_its_bytes_are_elsewhere(run: Path) -> None:
    mint(run)
    folder = write_rank(run, 0, 10, 1)
    assert committing.commit_folder(folder, 1, now=2.0) is None
    write_rank(run, 1, 10, 1)
    manifest = committing.commit_folder(folder, 1, now=2.0)
    assert manifest is not None and manifest == generations.read_manifest(folder)
    assert generations.accepted_folders(run, LOCAL) == [folder.name]
    assert generations.accepted_folders(run) == []


def test_parameters_that_are_not_finite_are_never_committed(run: Path) -> None:
    mint(run)
    write_rank(run, 0, 10, 1)
    folder = write_rank(run, 1, 10, 1, finite=False)
    assert committing.commit_folder(folder, 1, now=2.0) is None


def test_the_successor_commits_and_lists_each_tier_by_itself(run: Path) -> None:
    """A step on one tier says nothing about the folder of the same name on the other."""
    mint(run)
    name = write(run, 10, 1).name
    made = mint(run)
    assert (made.accepted, made.accepted_local) == ((), (name,))
    assert accepts(made, name, LOCAL) and not accepts(made, name)
    assert generations.newest(run) == made
    # The name is on the local list only: the same folder on shared storage came too late and does not count.
    late = run / name
    shutil.copytree(run / "local" / name, late)
    assert generations.accepted_folders(run) == []


def test_a_lost_manifest_of_an_accepted_one_is_written_again(run: Path) -> None:
    mint(run)
    folder = write(run, 10, 1)
    mint(run)
    (folder / "manifest.json").unlink()
    assert committing.commit_complete(run, now=3.0) == [f"local/{folder.name}"]


def test_a_superseded_attempt_commits_no_local_one(run: Path) -> None:
    mint(run)
    folder = write_rank(run, 0, 20, 1)
    mint(run)
    write_rank(run, 1, 20, 1)
    with pytest.raises(NotNewest):
        committing.commit_folder(folder, 1, now=2.0)
    assert not (folder / "manifest.json").exists()


def test_a_rename_after_the_look_is_on_no_list(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mint(run)
    late = write_rank(run, 0, 20, 1)
    mint(run)
    write_rank(run, 1, 20, 1)
    monkeypatch.setattr(committing, "check_token", lambda *_: None)
    assert committing.commit_folder(late, 1, now=2.0) is not None
    assert generations.accepted_folders(run, LOCAL) == []
    assert mint(run).accepted_local == ()


def test_a_quarantined_one_is_never_listed_again(run: Path) -> None:
    mint(run)
    folder = write(run, 10, 1)
    assert committing.commit_complete(run, now=2.0) == [f"local/{folder.name}"]
    generations.quarantine(folder, reason="failed verification", generation=1, now=3.0)
    assert generations.accepted_folders(run, LOCAL) == []
    assert mint(run).accepted_local == ()


def test_a_manifest_copied_from_the_other_run_is_refused(run: Path) -> None:
    mint(run)
    folder = write(run, 10, 1)
    committing.commit_complete(run, now=2.0)
    other = run.parent / "tj-000000000000" / "local"
    other.mkdir(parents=True)
    shutil.copytree(folder, other / folder.name)
    with pytest.raises(ValueError, match="belongs to"):
        generations.read_manifest(other / folder.name)


def test_a_list_that_is_out_of_date_is_minted_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mint(run)
    committing.commit_folder(write(run, 100, 1), 1, now=1.0)

    def hanging(path: Path, data: bytes) -> bool:
        monkeypatch.undo()
        committing.commit_folder(write(run, 200, 1), 1, now=2.0)
        shutil.rmtree(run / "local" / "step-00000100.g1")
        return create_file(path, data)

    monkeypatch.setattr(minting, "create_file", hanging)
    assert mint(run).accepted_local == ("step-00000200.g1",)


def test_a_generation_of_a_writer_that_knows_no_tiers_accepts_none() -> None:
    old = decode_generation(json.loads(GOLDEN.read_text()))
    assert old.accepted_local == ()
    assert "accepted_local" not in encode_generation(old)
