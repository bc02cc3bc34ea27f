"""Copies between real ranks, one of which is killed or stopped in the middle of one."""

import os
import signal
from pathlib import Path

import pytest

from tests.worker_hooks.conftest import Ranks, World
from tests.worker_hooks.tiers_stage import FOLDER, make_share, wait_for
from worker_hooks.protocol.manifest import rank_file_name, rank_folder_name
from worker_hooks.training.tiers import link

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parent / "programs" / "copies.py"


def copying(world: World) -> tuple[Ranks, Path]:
    """Rank 0 puts a large share on rank 1's node, whose disk is slow; its main thread goes on counting."""
    data = make_share(world.folder / "gpu1" / "tj-1" / FOLDER, 0, 20 * link.WINDOW)
    (world.folder / "rank_file.json").write_bytes(data)
    started = world.start(PROGRAM, [str(world.folder), FOLDER], 2)
    wait_for((world.folder / "mid-copy").exists, started)
    return started, world.folder / "gpu2" / "tj-1" / FOLDER


def test_a_peer_killed_in_the_middle_of_a_copy(world: World) -> None:
    started, there = copying(world)
    os.kill(started.pids[1], signal.SIGKILL)
    wait_for((world.folder / "first").exists, started)
    assert "rank 1 on gpu2" in (world.folder / "first").read_text()
    counted = (world.folder / "counted").stat().st_size
    wait_for(lambda: (world.folder / "counted").stat().st_size > counted, started)
    (world.folder / "end").touch()
    assert started.wait() == [0, -9], started.text()
    assert not (there / rank_file_name(0)).exists() and not (there / rank_folder_name(0)).exists()


def test_a_peer_stopped_in_the_middle_of_a_copy_and_back_again(world: World) -> None:
    """The copy is given up in time; the next one goes through: nothing was poisoned."""
    started, there = copying(world)
    os.kill(started.pids[1], signal.SIGSTOP)
    try:
        wait_for((world.folder / "first").exists, started)
        assert "rank 1 on gpu2: the other side does not go on" in (world.folder / "first").read_text()
        assert not (there / rank_file_name(0)).exists()
    finally:
        os.kill(started.pids[1], signal.SIGCONT)
    (world.folder / "again").touch()
    wait_for((world.folder / "second").exists, started)
    (world.folder / "end").touch()
    assert started.wait() == [0, 0], started.text()
    assert (world.folder / "second").read_text() == "kept"
    assert (there / rank_file_name(0)).exists()
    assert not list(there.glob(".*")), "what the first copy left was cleared away"


def test_a_copy_that_is_under_way_does_not_hold_up_the_end_of_a_process(world: World) -> None:
    started, _ = copying(world)
    os.kill(started.pids[1], signal.SIGSTOP)
    try:
        (world.folder / "end at once").touch()
        wait_for((world.folder / "ended").exists, started)
    finally:
        os.kill(started.pids[1], signal.SIGCONT)
    (world.folder / "end").touch()
    assert started.wait() == [0, 0], started.text()
