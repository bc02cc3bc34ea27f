"""All ranks save at the same step or none does, whoever asked and however the ranks' threads interleave."""

import threading
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_hooks.training.occasions.agreement import (
    DECIDE_S,
    Agreement,
    AgreementThread,
    Plan,
    Wish,
)
from worker_hooks.training.occasions.boards import OwnBoard, StoreBoard


class Scene:
    """Ranks in lockstep: none is more than one step ahead of the slowest."""

    def __init__(self, ranks: int) -> None:
        self.now = 0.0
        self.board = OwnBoard()
        self.completed = [0] * ranks
        self.carried_out: list[list[Plan]] = [[] for _ in range(ranks)]
        self.ranks = [self._rank(rank, ranks) for rank in range(ranks)]
        self.dead: set[int] = set()

    def _rank(self, rank: int, ranks: int) -> Agreement:
        return Agreement(self.board, rank, ranks, lambda: self.completed[rank], lambda: self.now, self._others_go_on)

    def _others_go_on(self) -> None:
        """What happens while one rank waits at a proposed step."""
        self.now += 1.0
        for rank in range(len(self.ranks)):
            self.tick(rank)

    def tick(self, rank: int) -> None:
        if rank not in self.dead:
            self.ranks[rank].tick()

    def step(self, rank: int) -> None:
        if self.completed[rank] > min(self.completed) or rank in self.dead:
            return
        self.completed[rank] += 1
        plan = self.ranks[rank].due(self.completed[rank])
        if plan is not None:
            self.carried_out[rank].append(plan)

    def settle(self, seconds: int = 400) -> None:
        for _ in range(seconds):
            self.now += 0.5
            for rank in range(len(self.ranks)):
                self.tick(rank)
            for rank in range(len(self.ranks)):
                self.step(rank)
                self.step(rank)


moves = st.lists(st.tuples(st.sampled_from(["tick", "step", "step", "step", "wish", "time"]), st.integers(0, 3)))


@settings(max_examples=400, deadline=None)
@given(ranks=st.integers(1, 4), order=moves)
def test_all_ranks_save_at_the_same_steps(ranks: int, order: list[tuple[str, int]]) -> None:
    scene, wished = Scene(ranks), 0
    for move, number in order:
        rank = number % ranks
        if move == "tick":
            scene.tick(rank)
        elif move == "step":
            scene.step(rank)
        elif move == "wish":
            wished += 1
            scene.ranks[rank].wish(Wish(f"rank {rank}"))
        else:
            scene.now += 2.0
    scene.settle()
    slowest = min(scene.completed)
    seen = [[plan for plan in done if plan.step <= slowest] for done in scene.carried_out]
    assert all(plans == seen[0] for plans in seen)
    assert bool(seen[0]) == bool(wished)  # none unasked, and no wish is forgotten
    assert len({plan.step for plan in seen[0]}) == len(seen[0])


def test_wishes_of_several_ranks_are_one_save() -> None:
    scene = Scene(3)
    for rank in range(3):
        scene.ranks[rank].wish(Wish("the signal before the time limit"))
    scene.settle()
    assert [[plan.why for plan in done] for done in scene.carried_out] == [["the signal before the time limit"]] * 3


def test_a_stop_that_is_asked_for_while_a_save_is_proposed_is_not_forgotten() -> None:
    scene = Scene(2)
    scene.ranks[0].wish(Wish("save"))
    scene.tick(0)
    scene.ranks[1].wish(Wish("stop", stop=True))
    scene.settle()
    assert [[(plan.why, plan.stop) for plan in done] for done in scene.carried_out] == [
        [("save", False), ("stop", True)]
    ] * 2


def test_a_rank_that_is_silent_prevents_the_save_and_nothing_else() -> None:
    scene = Scene(2)
    scene.dead.add(1)
    scene.ranks[0].wish(Wish("now"))
    scene.now += 1.0
    for _ in range(10):
        scene.tick(0)
    scene.step(0)  # waits at the proposed step until rank 0's own thread decides against it
    assert scene.carried_out[0] == []
    assert scene.now >= DECIDE_S


def test_a_wish_whose_rank_died_between_its_two_writes_blocks_nobody() -> None:
    scene = Scene(2)
    scene.board.add("wishes", 1)
    scene.ranks[1].wish(Wish("mine"))
    scene.settle(30)
    assert [plan.why for plan in scene.carried_out[0]] == ["mine"]


class Broken(OwnBoard):
    def read(self, key: str) -> str | None:
        if key.startswith("decided"):
            raise RuntimeError("the store's host is gone")
        return super().read(key)


def test_a_store_that_goes_away_ends_no_training() -> None:
    board, completed = Broken(), [0]
    agreement = Agreement(board, 0, 2, lambda: completed[0])
    agreement.wish(Wish("now"))
    agreement.tick()
    completed[0] = 1
    assert agreement.due(1) is None


@pytest.mark.parametrize("ranks", [1, 3])
def test_on_a_real_store_with_threads(ranks: int) -> None:
    """Each rank with a connection and threads of its own; rank 2 asks, all save once at the same step."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    barrier = threading.Barrier(ranks)
    saved: list[list[int]] = [[] for _ in range(ranks)]

    def train(rank: int) -> None:
        completed = [0]
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
        agreement = Agreement(StoreBoard(client, "g1"), rank, ranks, lambda: completed[0])
        thread = AgreementThread(agreement.tick, ranks)
        until = time.monotonic() + 60.0
        if rank == ranks - 1:
            agreement.wish(Wish("now"))
        while not saved[rank] and time.monotonic() < until:
            barrier.wait(timeout=60.0)
            time.sleep(0.01)
            completed[0] += 1
            if agreement.due(completed[0]) is not None:
                saved[rank].append(completed[0])
        thread.close()

    _all(train, ranks)
    assert saved == [saved[0]] * ranks
    assert len(saved[0]) == 1


def _all(call: Callable[[int], None], ranks: int) -> None:
    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120.0)
