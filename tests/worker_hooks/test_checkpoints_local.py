"""`relume checkpoints` and what lies on the nodes: listed, never read, pruned down to two. Without torch."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.checkpoint_shelf import NOW, TENSORS, Shelf, run_of
from worker_hooks.cli import checkpoints_prune
from worker_hooks.cli.checkpoints_list import lines, listing
from worker_hooks.cli.checkpoints_places import look
from worker_hooks.cli.checkpoints_verify import exit_code, verification
from worker_hooks.protocol import committing
from worker_hooks.protocol.leases import reading
from worker_hooks.protocol.tiers import LOCAL
from worker_hooks.protocol.tiers import shelf as shelf_of

pytestmark = pytest.mark.pure


def on_nodes(shelf: Shelf, step: int, generation: int, *, copies: bool = False, commit: bool = True) -> Path:
    """A step of two ranks on two nodes. Its bytes are gone from here, as they never were."""
    folder = shelf.write(step, generation, (TENSORS, TENSORS))
    index = shelf_of(shelf.run, LOCAL) / folder.name
    index.mkdir(parents=True)
    for rank in range(2):
        data = json.loads((folder / f"rank-{rank:05d}.json").read_text())
        data["saving"] = {"node": f"gpu{rank + 1}", "copy": f"gpu{2 - rank}" if copies else None}
        (index / f"rank-{rank:05d}.json").write_text(json.dumps(data))
    shutil.rmtree(folder)
    if commit:
        assert committing.commit_folder(index, generation, now=NOW - 3600.0) is not None
    shelf.date(86400.0)
    return index


def local(shelf: Shelf) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_of(shelf)["local"]
    return found


def test_they_are_listed_apart_with_their_nodes_and_their_state_is_the_indexs(shelf: Shelf) -> None:
    shelf.mint(world_size=2)
    on_nodes(shelf, 5, 1, commit=False)
    shelf.mint(world_size=2)  # commits it
    shelf.commit(10, 2)
    on_nodes(shelf, 20, 2, copies=True)
    (on_nodes(shelf, 30, 2, commit=False) / "rank-00001.json").unlink()
    found = {item["step"]: item for item in local(shelf)}
    assert {step: item["state"] for step, item in found.items()} == {30: "incomplete", 20: "committed", 5: "committed"}
    assert found[20]["nodes"] == ["gpu1", "gpu2"] and found[20]["copies"] == 2 and found[20]["counts"]
    assert found[20]["bytes"] > 300 and "verified" not in found[20]
    assert found[30]["missing"] == ["rank-00001.json is missing"]
    run = run_of(shelf)
    assert [item["step"] for item in run["checkpoints"]] == [10] and run["resume"]["step"] == 10


def test_the_text_says_that_nobody_knows_from_here_whether_the_nodes_still_have_them(shelf: Shelf) -> None:
    shelf.mint(world_size=2)
    shelf.commit(10, 1)
    before = "\n".join(lines(listing(shelf.run, NOW)))
    assert "on the nodes" not in before
    on_nodes(shelf, 5, 1), on_nodes(shelf, 20, 1, copies=True)
    text = "\n".join(lines(listing(shelf.run, NOW)))
    assert "on the nodes, listed here (whether the bytes are still there cannot be told from here):" in text
    assert "gpu1,gpu2" in text
    assert "resume takes: step-00000010.g1" in text
    assert "or, where the nodes still have them: step-00000020.g1" in text, "an older one is of no use beside it"


@pytest.mark.parametrize("given", ["run", "index", "one"])
def test_verify_says_that_they_cannot_be_read_from_here(shelf: Shelf, given: str) -> None:
    shelf.mint(world_size=2)
    index = on_nodes(shelf, 20, 1)
    if given != "one":
        shelf.commit(10, 1)
    place = look({"run": shelf.run, "index": index.parent, "one": index}[given])
    found = verification(place, everything=True, limit=None, progress=False)
    (skipped,) = found["skipped"]
    assert skipped["folder"] == "local/step-00000020.g1"
    assert skipped["reason"] == "its bytes are on gpu1, gpu2 and cannot be read from here"
    assert exit_code(found) == (2 if given == "one" else 0)


def prune(shelf: Shelf, *, do_it: bool) -> dict[str, Any]:
    options = checkpoints_prune.Options(3, do_it=do_it, quarantined=False, force=None)
    (run,) = checkpoints_prune.pruning(look(shelf.run), options, NOW)["runs"]
    result: dict[str, Any] = run
    return result


def test_prune_leaves_the_newest_two_and_those_being_read(shelf: Shelf) -> None:
    shelf.mint(world_size=2)
    for step in (10, 20, 30, 40):
        on_nodes(shelf, step, 1)
    going = [item["folder"] for item in prune(shelf, do_it=False)["goes"]]
    assert going == ["local/step-00000020.g1", "local/step-00000010.g1"]
    with reading(shelf.run / "local" / "step-00000010.g1"):
        assert prune(shelf, do_it=True)["removed"] == ["local/step-00000020.g1"]
    assert [item["step"] for item in local(shelf)] == [40, 30, 10]


def test_what_the_newest_attempt_is_saving_on_its_nodes_is_a_sign_of_life(shelf: Shelf) -> None:
    shelf.mint(world_size=2)
    on_nodes(shelf, 10, 1), on_nodes(shelf, 20, 1), on_nodes(shelf, 30, 1)
    (shelf.run / "local" / "step-00000030.g1" / "rank-00000.json").touch()
    os.utime(shelf.run / "local" / "step-00000030.g1", (NOW - 60, NOW - 60))
    refused = prune(shelf, do_it=True)
    assert "may be writing: step-00000030.g1" in refused["refused"] and not refused["removed"]


def test_leftovers_of_a_removal_from_the_index_go_too(shelf: Shelf) -> None:
    shelf.mint(world_size=2)
    on_nodes(shelf, 10, 1)
    left = shelf.run / "local" / ".trash-step-00000001.g1.ab12cd34"
    left.mkdir()
    shelf.date(86400.0)
    assert prune(shelf, do_it=True)["removed"] == [f"local/{left.name}"] and not left.exists()
