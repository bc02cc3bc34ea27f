"""An interruption at every step of a run that crosses epochs changes nothing, to the bit.

DDP on 1, 2 and 4 ranks with BatchNorm, dropout, clipping, shuffling, augmentation by Python's, numpy's and torch's
numbers in 0 and 2 loader workers, a schedule and gradient accumulation, all together; ranks end by SIGKILL. Every
update of every attempt is compared with the plain loop's: parameters, buffers, optimizer, average, learning rate, loss,
generators, sample ids and what the augmentation made of them.

The tests take 12 seeded steps, one run killed at all of them, and few runs killed once; `RELUME_FULL=1` a run of its
own for each of the 60 steps in each world.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import HERE, ForkServer, World
from worker_hooks.protocol.losses import read_losses

pytestmark = pytest.mark.torch

TRACED = HERE / "programs" / "traced.py"
STEPS, EVERY, ACCUMULATE, BATCH, BATCHES = 60, 5, 2, 4, 49
FULL = bool(os.environ.get("RELUME_FULL"))
CHAIN = 12
MOMENTS = ("mid", "after", "saved")
# Alone at one step: each of them in each world, or a few at the ends of epochs and of the run.
EACH = [*product(range(1, STEPS + 1), (1, 2, 4), (0, 2))] if FULL else [(1, 1, 0), (24, 2, 0), (25, 2, 2), (60, 1, 2)]
# Where the second of two comes, by moment and step, and the updates that the attempt between them makes.
SECONDS = {
    "loading": ("loading", 0, set()),
    "replay": ("after", 27, {26, 27}),
    "first save": ("saved", 30, {*range(26, 31)}),
}
Lines = list[dict[str, Any]]
ENDING = ("losses", "parameters", "buffers", "average", "lr", "next_random")


def job(ranks: int) -> dict[str, Any]:
    """An epoch has 49 batches, so an accumulation goes on across every other end of one; 3 samples are left out."""
    samples = BATCHES * BATCH * ranks + 3
    shape = {"total": STEPS, "epochs": 9, "samples": samples, "batch": BATCH, "accumulate": ACCUMULATE}
    return {**shape, "augment": "per_sample", "every": EVERY}


class Story:
    """One training job on the way to its last step, through any number of interruptions."""

    def __init__(self, server: ForkServer, folder: Path, ranks: int, workers: int = 0, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.world = World(server, folder)
        self.ranks = ranks
        self._options = {**job(ranks), "workers": workers, "out": str(folder / "out"), **options}
        self._attempts = 0

    def attempt(self, strike: dict[str, Any] | None = None, **more: Any) -> list[Lines]:
        """One attempt, to its strike or to the last step; what each rank traced."""
        self._attempts += 1
        run_dir = self.world.new_run_dir(f"attempt{self._attempts}", self.ranks)
        options = {**self._options, "root": str(self.world.root), "trace": str(run_dir / "trace"), "strike": strike}
        started = self.world.start(TRACED, [json.dumps(options | more)], self.ranks, {"RELUME_RUN_DIR": str(run_dir)})
        statuses = started.wait(120)
        ended = -9 in statuses and all(statuses) if strike else statuses == [0] * self.ranks
        assert ended, f"{strike}: {statuses}\n{started.text()}"
        for rank in range(self.ranks):
            self._verified(run_dir, rank)
        return [lines(run_dir / f"trace.{rank}.jsonl") for rank in range(self.ranks)]

    def _verified(self, run_dir: Path, rank: int) -> None:
        if (run_dir / f"events-{rank}.jsonl").exists():
            records = [event for event in self.world.events(run_dir, rank) if event["kind"] == "verification"]
            assert all(record["outcome"] == "PASS" for record in records), records

    def ends(self) -> list[dict[str, Any]]:
        """What the ranks ended with, and the losses that are kept of all attempts."""
        found = []
        for rank in range(self.ranks):
            end = json.loads(Path(f"{self._options['out']}.{rank}.json").read_text())
            end.setdefault("losses", list(read_losses(self.world.run, rank).values()))
            found.append({key: end[key] for key in ENDING})
        return found


def lines(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Plain:
    """What the loop does without `Run`: each rank's updates, and what it ends with."""

    lines: list[Lines]
    ends: list[dict[str, Any]]

    def agrees(self, found: list[Lines]) -> set[int]:
        """Every traced update is this loop's; the steps seen."""
        for rank, (mine, known) in enumerate(zip(found, self.lines, strict=True)):
            for line in mine:
                wrong = [key for key, value in known[line["step"] - 1].items() if line[key] != value]
                assert not wrong, f"rank {rank}, step {line['step']}: {wrong} differ"
        return {line["step"] for mine in found for line in mine}


@pytest.fixture(scope="module")
def plain(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Plain]:
    """By number of ranks; run once."""

    @cache
    def run(ranks: int) -> Plain:
        story = Story(fork_server, tmp_path_factory.mktemp("plain"), ranks, plain=True)
        found = story.attempt()
        assert [line["step"] for line in found[0]] == [*range(1, STEPS + 1)]
        return Plain(found, story.ends())

    return run


def strike(dice: random.Random, ranks: int, step: int) -> dict[str, Any]:
    """One rank, or all of them as when the power fails, at one of the moments of that update. Nothing follows the
    last one's save but the end."""
    moment = dice.choice(MOMENTS[:2] if step == STEPS else MOMENTS)
    return {"rank": dice.choice([*range(ranks), None]), "step": step, "moment": moment}


def strikes(ranks: int, seed: int) -> Iterator[dict[str, Any]]:
    """One in each twelfth of the run; every fourth is followed by one in the replay of what it lost."""
    dice, width = random.Random(seed), STEPS // CHAIN
    for number, first in enumerate(range(1, STEPS, width)):
        back = number % 4 == 3
        yield strike(dice, ranks, dice.randrange(first, first + width - back))
        if back:  # nothing was saved since
            yield {"rank": dice.choice([*range(ranks), None]), "step": first, "moment": "mid"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_run_killed_at_twelve_of_its_steps_is_the_plain_loop(
    fork_server: ForkServer, tmp_path: Path, plain: Callable[[int], Plain], ranks: int, workers: int
) -> None:
    story, seen = Story(fork_server, tmp_path / "run", ranks, workers), set()
    for number, each in enumerate(strikes(ranks, 10 * ranks + workers)):
        seen |= plain(ranks).agrees(story.attempt(each, asynchronous=bool(number % 2)))
    seen |= plain(ranks).agrees(story.attempt())
    assert seen == {*range(1, STEPS + 1)}
    assert story.ends() == plain(ranks).ends


@pytest.mark.parametrize(
    ("second", "rank"),
    [*product(SECONDS, (0, 1, None))] if FULL else [("loading", None), ("replay", 0), ("first save", 1)],
)
def test_two_interruptions_in_a_row(
    fork_server: ForkServer, tmp_path: Path, plain: Callable[[int], Plain], second: str, rank: int | None
) -> None:
    """Killed at step 28, in the second epoch, with 25 saved. Then while the tensors are read, at the replayed step 27,
    or right after the second attempt's own first save, at 30."""
    story = Story(fork_server, tmp_path / "run", 2, 2)
    plain(2).agrees(story.attempt({"rank": 1, "step": 28, "moment": "mid"}))
    moment, step, seen = SECONDS[second]
    assert plain(2).agrees(story.attempt({"rank": rank, "step": step, "moment": moment})) == seen
    third = plain(2).agrees(story.attempt())
    assert min(third) == (31 if second == "first save" else 26)
    assert story.ends() == plain(2).ends


@pytest.mark.parametrize(("step", "ranks", "workers"), EACH)
def test_an_interruption_at_every_step(
    fork_server: ForkServer, tmp_path: Path, plain: Callable[[int], Plain], step: int, ranks: int, workers: int
) -> None:
    dice = random.Random(f"{step} {ranks} {workers}")
    story = Story(fork_server, tmp_path / "run", ranks, workers, asynchronous=dice.choice([False, True]))
    before = plain(ranks).agrees(story.attempt(strike(dice, ranks, step)))
    after = plain(ranks).agrees(story.attempt())
    assert before | after == {*range(1, STEPS + 1)}
    assert story.ends() == plain(ranks).ends
