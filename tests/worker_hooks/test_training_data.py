"""The sampler and the feed: the position is absolute, nothing is skipped, nothing comes twice."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.data.feed import Feed
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.sabotage import Sabotage
from worker_hooks.training.state import random_state

pytestmark = pytest.mark.torch


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


def sampler(size: int = 10, *, ranks: int = 1, rank: int = 0, seed: int = 1, **options: Any) -> ResumableSampler:
    return ResumableSampler(range(size), seed=seed, num_replicas=ranks, rank=rank, **options)


def feed(loader: Any, kind: str | None = None) -> Feed:
    return Feed(loader, Sabotage(kind))


def take(source: Feed, count: int) -> list[list[int]]:
    """`count` batches of the next iteration; fewer at the end of the epoch."""
    found = []
    for batch in source.open():
        source.delivered()
        found.append(batch.tolist())
        if len(found) == count:
            break
    return found


# --- sampler ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 8), st.integers(0, 5), st.booleans())
def test_ranks_share_an_epoch_without_overlap_or_padding(size: int, ranks: int, epoch: int, shuffle: bool) -> None:
    if size < ranks:
        return
    parts = []
    for rank in range(ranks):
        part = sampler(size, ranks=ranks, rank=rank, shuffle=shuffle)
        part.set_epoch(epoch)
        parts.append(list(part))
        assert len(parts[-1]) == len(part)
    everything = [index for part in parts for index in part]
    assert len(everything) == len(set(everything)) == size - size % ranks
    assert set(everything) <= set(range(size))


@given(st.integers(8, 100), st.integers(1, 4), st.integers(0, 3), st.data())
def test_a_resumed_epoch_is_the_rest_of_the_whole_one(size: int, ranks: int, epoch: int, data: st.DataObject) -> None:
    whole = sampler(size, ranks=ranks)
    whole.set_epoch(epoch)
    done = data.draw(st.integers(0, len(whole)))
    resumed = sampler(size, ranks=ranks)
    resumed.set_epoch(epoch)
    resumed.start_at(done * ranks)
    assert resumed.peek(3) == list(whole)[done : done + 3] == whole.ids_at(epoch, done * ranks, 3)
    assert list(resumed) == list(whole)[done:]
    assert list(resumed) == list(whole), "only the first epoch after a resume starts in the middle (R08)"


def test_the_position_holds_on_another_number_of_ranks() -> None:
    """16 samples consumed by 4 ranks: 2 ranks continue with the 17th of the same order."""

    def rest(ranks: int) -> list[int]:
        parts = [sampler(64, ranks=ranks, rank=rank) for rank in range(ranks)]
        for part in parts:
            part.start_at(16)
        return [index for together in zip(*parts, strict=True) for index in together]

    assert rest(2) == rest(4) == list(sampler(64))[16:]


def test_epochs_differ_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second = sampler(100), sampler(100)
    second.set_epoch(1)
    assert list(first) != list(second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("position", [-4, 65])
def test_an_impossible_position_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match="outside an epoch of 64 samples"):
        sampler(64, ranks=4).start_at(position)


def test_fewer_samples_than_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be shared"):
        sampler(3, ranks=4)


# --- feed -----------------------------------------------------------------------------------------------------------


def loaders(kind: str) -> DataLoader[int]:
    data = Numbers(20)
    if kind == "resumable":
        return DataLoader(data, 2, sampler=ResumableSampler(data, seed=1, num_replicas=1, rank=0))
    if kind == "distributed":
        return DataLoader(data, 2, sampler=DistributedSampler(data, num_replicas=1, rank=0, seed=1))
    if kind == "workers":
        return DataLoader(data, 2, sampler=ResumableSampler(data, seed=1, num_replicas=1, rank=0), num_workers=1)
    return DataLoader(data, 2, shuffle=True)


@pytest.mark.parametrize("kind", ["resumable", "distributed", "shuffle", "workers"])
@pytest.mark.parametrize("done", [0, 3, 10])
def test_the_next_batch_is_the_uninterrupted_runs_next_batch(kind: str, done: int) -> None:
    """R01: stopped in epoch 1, the fresh loader continues that epoch's order, and later epochs are whole."""
    torch.manual_seed(4)
    whole = feed(loaders(kind))
    orders = []
    for epoch in range(3):
        whole.set_epoch(epoch)
        orders.append(take(whole, 99))

    torch.manual_seed(4)
    stopped = feed(loaders(kind))
    stopped.set_epoch(0)
    take(stopped, 99)
    stopped.set_epoch(1)
    iterator = stopped.open()
    for _ in range(done):
        next(iterator)
        stopped.delivered()
    position, state = stopped.position(), random_state.capture()
    del iterator

    torch.manual_seed(99)
    resumed = feed(loaders(kind))
    resumed.resume(position)
    resumed.set_epoch(1)
    rest = resumed.open()
    random_state.restore(state)
    found = []
    for batch in rest:
        resumed.delivered()
        found.append(batch.tolist())
    assert found == orders[1][done:]
    resumed.set_epoch(2)
    assert take(resumed, 99) == orders[2]
    assert len(orders[1]) == 10


def test_restarts_within_an_epoch_add_up() -> None:
    """R04, R07: 30 batches, then 10 more, then the 41st; not the 11th, not the 40th again."""
    data = Numbers(200)

    def fresh() -> Feed:
        return feed(DataLoader(data, 2, sampler=ResumableSampler(data, seed=1, num_replicas=1, rank=0)))

    order = take(fresh(), 100)
    first = fresh()
    take(first, 30)
    second = fresh()
    second.resume(first.position())
    take(second, 10)
    assert second.position()["batches"] == 40 and second.position()["consumed"] == 80
    third = fresh()
    third.resume(second.position())
    assert take(third, 1) == [order[40]]


def test_a_loader_with_a_state_of_its_own_gets_it_before_it_is_iterated() -> None:
    class Stateful:
        batch_size, batch_sampler = 1, None

        def __init__(self) -> None:
            self.calls: list[str] = []

        def state_dict(self) -> dict[str, Any]:
            return {"at": 3}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.calls.append(f"load {state['at']}")

        def __iter__(self) -> Any:
            self.calls.append("iter")
            return iter(())

    position = feed(Stateful()).position()
    loader = Stateful()
    resumed = feed(loader)
    resumed.resume(position)
    resumed.open()
    assert loader.calls == ["load 3", "iter"]


def test_a_loader_that_became_shorter_is_an_error() -> None:
    position = feed(loaders("shuffle")).position() | {"batches": 8, "epoch_random": random_state.capture()}
    short = DataLoader(Numbers(20), 2, shuffle=False, sampler=iter(range(4)))  # type: ignore[arg-type]
    resumed = feed(short)
    resumed.resume(position)
    with pytest.raises(CheckpointError, match="ended after 2 batches; 8 were consumed"):
        resumed.open()


@pytest.mark.parametrize(("saved", "now"), [("resumable", "shuffle"), ("shuffle", "resumable")])
def test_a_loader_of_another_kind_is_an_error_that_says_so(saved: str, now: str) -> None:
    """R01, R11: it would begin elsewhere, in another order."""
    position = feed(loaders(saved)).position()
    with pytest.raises(CheckpointMismatch, match="another kind than at the save"):
        feed(loaders(now)).resume(position)
    feed(loaders(saved)).resume(position)


@pytest.mark.parametrize("done", [0, 3, 10])
def test_sabotage_of_the_position_shows_in_what_the_feed_says(done: int) -> None:
    source = feed(loaders("resumable"))
    source.open()
    for _ in range(done):
        source.delivered()
    position = source.position()
    for kind, same in ((None, True), ("data", False)):
        resumed = feed(loaders("resumable"), kind)
        resumed.resume(position)
        resumed.open()
        assert (resumed.actual()["next_ids_digest"] == position["next_ids_digest"]) is same
