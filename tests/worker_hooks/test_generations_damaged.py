"""A damaged file of a generation or a checkpoint costs no other checkpoint, and what is accused is what is broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.run_folder import mint, run, write_folder
from worker_hooks.protocol import committing, generations
from worker_hooks.protocol.manifest import Broken, folder_name, rank_file_name, sealed
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.survey import survey

pytestmark = pytest.mark.pure
__all__ = ["run"]


def test_a_manifest_copied_from_elsewhere_is_refused(run: Path) -> None:
    mint(run)
    folder = write_folder(run, 10, 1)
    committing.commit_complete(run, now=2.0)
    other = run / folder_name(30, 1)
    folder.rename(other)
    with pytest.raises(MessageError, match="belongs to"):
        generations.read_manifest(other)


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


@pytest.mark.parametrize("left", [0, 1, 2], ids=["all gone", "two gone", "one gone"])
def test_generation_files_that_are_gone_cost_no_checkpoint(run: Path, left: int) -> None:
    """Folders tell which generations there were: numbers are never given twice, and nothing committed is given up."""
    for step in (100, 200, 300):
        number = mint(run).generation
        committing.commit_folder(write_folder(run, step, number), number, now=1.0)
    for number in range(left + 1, 4):
        (run / "generations" / f"{number:06d}.json").unlink()
    found = survey(run)
    assert found.choice.folder == "step-00000300.g3" and "is broken or gone" in found.choice.why
    assert any("000003.json: gone" in problem for problem in found.problems)
    made = mint(run)
    assert (made.generation, made.accepted[0], len(made.accepted)) == (4, "step-00000300.g3", 3)
    assert made.problem == "generations/000003.json: gone, though a folder of it is there"
    assert survey(run).choice.folder == "step-00000300.g3" and mint(run).generation == 5


@pytest.mark.parametrize("other", ["a folder", "a link to nothing"])
def test_something_else_in_the_place_of_the_newest_generation_file(run: Path, other: str) -> None:
    mint(run)
    committing.commit_folder(write_folder(run, 100, 1), 1, now=1.0)
    path = run / "generations" / "000002.json"
    if other == "a folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    made = mint(run)
    assert (made.generation, made.accepted) == (3, ("step-00000100.g1",))
    assert made.problem is not None and made.problem.startswith("generations/000002.json")


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
