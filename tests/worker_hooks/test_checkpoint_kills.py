"""SIGKILL at random moments of saving, committing, pruning and loading, on two ranks: nothing good is lost, nothing
corrupt is loaded, and the run ends as if nobody had touched it. Seeded; `RELUME_FULL=1` runs all of them.
"""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import ForkServer, Ranks, World
from worker_hooks.digests import algorithm_of
from worker_hooks.protocol import committing, generations
from worker_hooks.protocol.manifest import parse_folder
from worker_hooks.training.files.digests import file_digest

pytestmark = pytest.mark.torch

SEEDS = range(500 if os.environ.get("RELUME_FULL") else 40)
BATCH = 10  # seeds that share a test, so that one failure names few of them
# Much saving and little training: most moments lie inside a save, a commit or a prune.
JOB: dict[str, Any] = {"total": 24, "epochs": 5, "samples": 48, "every": 1}
KILLS = 2


@pytest.fixture(scope="module")
def untouched(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], float]:
    """How the run ends when nobody kills it, and how long it takes."""
    world = World(fork_server, tmp_path_factory.mktemp("untouched"))
    started = time.monotonic()
    return world.finish(2, **JOB), time.monotonic() - started


@pytest.mark.parametrize("first", range(0, len(SEEDS), BATCH))
def test_a_run_that_is_killed_at_any_moment_ends_as_if_nobody_had(
    fork_server: ForkServer, tmp_path: Path, untouched: tuple[list[dict[str, Any]], float], first: int
) -> None:
    expected, whole_s = untouched
    for seed in range(first, min(first + BATCH, len(SEEDS))):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(fork_server, folder)
        for _ in range(KILLS):
            # Every other run saves while it trains on, as runs do unless they are told otherwise.
            seen = strike(world, world.tiny(2, **JOB, asynchronous=bool(seed % 2)), dice, whole_s)
            assert newest_intact(world.run) >= seen, f"seed {seed}: a checkpoint that counted is gone or broken"
        if world.run.exists():
            committing.commit_complete(world.run, now=time.time())  # as the next attempt does before it looks
        over = newest_counting(world.run) == JOB["total"]
        assert ends(world.finish(2, **JOB), over) == ends(expected, over), f"seed {seed}"


def strike(world: World, ranks: Ranks, dice: random.Random, whole_s: float) -> int:
    """Kill one rank or both at a random moment; the newest step that was seen to count before."""
    until, seen = time.monotonic() + dice.uniform(0.0, whole_s), 0
    while time.monotonic() < until:
        seen = max(seen, newest_counting(world.run))
        time.sleep(0.002)
    victims = dice.choice([ranks.pids, ranks.pids[:1], ranks.pids[1:]])
    for pid in victims:
        kill(pid)
    time.sleep(dice.choice([0.0, 0.01]))
    for pid in ranks.pids:
        kill(pid)
    ranks.wait()
    return seen


def kill(pid: int) -> None:
    """Not reaped before `wait`, so the number is still this rank's."""
    os.kill(pid, signal.SIGKILL)


def newest_counting(run: Path) -> int:
    try:
        names = generations.accepted_folders(run)
    except FileNotFoundError:
        return 0
    place = parse_folder(names[0]) if names else None
    return place[0] if place else 0


def newest_intact(run: Path) -> int:
    """The newest step whose every byte matches, among all that count; each that counts must."""
    names = generations.accepted_folders(run) if run.exists() else []
    for name in names:
        folder = run / name
        for ref in generations.read_manifest(folder).ranks:
            for entry in generations.read_rank_file(folder, ref.rank).files:
                assert file_digest(folder / entry.name, algorithm_of(entry.digest)) == entry.digest, entry.name
    return newest_counting(run)


def ends(found: list[dict[str, Any]], over: bool) -> list[dict[str, Any]]:
    """What must not differ: everything but the attempt's number, and the random state of a run that was over when it
    was resumed, and opened no loader."""
    left_out = {"generation", "next_random"} if over else {"generation"}
    return [{key: value for key, value in end.items() if key not in left_out} for end in found]
