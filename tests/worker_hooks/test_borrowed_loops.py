"""Loops of others: a stream stands where they keep their loader, and what accelerate deals to ranks is known."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, TensorDataset

from worker_hooks import Run
from worker_hooks.integrations.accelerate_loader import DealtOrder, PreparedLoader, tracked_form
from worker_hooks.integrations.stream import Stream
from worker_hooks.training.data import ResumableSampler, loader_kinds, sample_random
from worker_hooks.training.errors import CheckpointError

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)


class Loop:
    """A framework's: epochs of five batches that it counts itself, so it leaves an epoch without asking for more."""

    def __init__(self, root: Path, **options: Any) -> None:
        torch.manual_seed(1)
        model = torch.nn.Linear(1, 1)
        data = TensorDataset(torch.arange(10.0)[:, None])
        self.loader = DataLoader(data, 2, sampler=ResumableSampler(data, seed=5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.run = Run(
            model=model, optimizer=optimizer, loader=self.loader, root=root, asynchronous=False, **options
        ).__enter__()
        self.stopped = 0
        self.stream = Stream(self.run, self.loader, self._stop)

    def _stop(self) -> None:
        self.stopped += 1

    def epoch(self, number: int, batches: int = 5) -> list[list[float]]:
        self.stream.epoch = number
        iterator, seen = iter(self.stream), []
        for _ in range(batches):
            batch = next(iterator, None)
            if batch is None:
                break
            seen.append(batch[0].flatten().tolist())
            self.run.step(loss=1.0)
        return seen

    def leave(self) -> None:
        self.run.__exit__(None, None, None)

    def abandon(self) -> None:
        self.run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def folders(run: Run) -> list[str]:
    return sorted(folder.name for folder in run.folder.glob("step-*"))


def test_a_checkpoint_is_taken_when_the_next_batch_is_asked_for_or_at_a_boundary(tmp_path: Path) -> None:
    loop = Loop(tmp_path, checkpoint_every=5)
    loop.epoch(0)
    assert folders(loop.run) == []
    loop.run.boundary()
    assert folders(loop.run) == ["step-00000005.g1"]
    loop.run.boundary()  # nothing was done since
    loop.epoch(1)
    loop.epoch(2, batches=1)
    assert folders(loop.run) == ["step-00000005.g1", "step-00000010.g1"]
    loop.leave()


@pytest.mark.parametrize("killed_in", [(0, 3), (0, 5), (1, 2)])
def test_a_resumed_loop_gets_the_batches_that_are_left(tmp_path: Path, killed_in: tuple[int, int]) -> None:
    whole = Loop(tmp_path / "whole", checkpoint_every=0)
    expected = [whole.epoch(0), whole.epoch(1)]
    whole.leave()
    epoch, batches = killed_in
    first = Loop(tmp_path / "again", checkpoint_every=1)
    for number in range(epoch):
        first.epoch(number)
    first.epoch(epoch, batches)
    first.run.boundary()
    first.abandon()
    again = Loop(tmp_path / "again", checkpoint_every=0)
    assert again.run.completed == 5 * epoch + batches
    begin, done = (epoch, batches) if batches < 5 else (epoch + 1, 0)
    seen = {number: again.epoch(number) for number in range(begin, 2)}
    assert seen[begin] == expected[begin][done:]
    assert seen == {number: expected[number][done if number == begin else 0 :] for number in range(begin, 2)}
    again.leave()


def test_a_loop_that_begins_in_another_epoch_is_refused(tmp_path: Path) -> None:
    first = Loop(tmp_path, checkpoint_every=1)
    first.epoch(0)
    first.epoch(1, 2)
    first.leave()
    again = Loop(tmp_path)
    with pytest.raises(CheckpointError, match="goes on in epoch 0, but the run stands in epoch 1"):
        again.epoch(0)
    again.abandon()


def test_the_framework_is_told_when_the_run_is_over(tmp_path: Path) -> None:
    loop = Loop(tmp_path, total_steps=3)
    assert not loop.run.over
    assert len(loop.epoch(0)) == 3 and loop.run.over and loop.stopped == 1
    assert loop.epoch(1) == []
    loop.leave()


def test_a_new_run_makes_the_loaders_iterator_at_once_and_a_resumed_one_at_the_first_batch(tmp_path: Path) -> None:
    """What a framework draws between the two comes in the order of a run without Relume."""
    loop = Loop(tmp_path)
    before = torch.get_rng_state()
    iterator = iter(loop.stream)
    assert not torch.equal(before, torch.get_rng_state())
    next(iterator)
    loop.run.step(loss=1.0)
    loop.leave()
    again = Loop(tmp_path)
    before = torch.get_rng_state()
    iter(again.stream)
    assert torch.equal(before, torch.get_rng_state())
    again.abandon()


# --- what accelerate deals ------------------------------------------------------------------------------------------


def dealt(rank: int, ranks: int, *, drop_last: bool, shuffle: bool, even: bool = True) -> Any:
    data = TensorDataset(torch.arange(10))
    sampler = SeedableRandomSampler(data, data_seed=7) if shuffle else SequentialSampler(data)
    batches = BatchSampler(sampler, 2, drop_last)
    shared = BatchSamplerShard(batches, ranks, rank, even_batches=even) if ranks > 1 else batches
    return DataLoaderShard(data, batch_sampler=shared)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_order_is_told_in_advance(ranks: int, shuffle: bool, drop_last: bool) -> None:
    for rank in range(ranks):
        loader = dealt(rank, ranks, drop_last=drop_last, shuffle=shuffle)
        order = PreparedLoader(loader).known_order
        assert order is not None
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            consumed = 0
            for (batch,) in loader:
                assert order.ids(epoch, consumed, 2) == batch.tolist()
                consumed += len(batch) * ranks
            assert loader_kinds.batches_in(loader, order.rest(consumed)) <= 0


def test_asking_changes_nothing(tmp_path: Path) -> None:
    loader = dealt(0, 2, drop_last=False, shuffle=True)
    expected = [batch.tolist() for (batch,) in loader]
    loader.set_epoch(0)
    iterator, order = iter(loader), PreparedLoader(loader).known_order
    assert order is not None
    seen = []
    for (batch,) in iterator:
        seen.append(batch.tolist())
        order.ids(3, 4, 2)
    assert seen == expected


@pytest.mark.parametrize("kind", ["uneven", "unseeded", "not batched by number"])
def test_an_order_that_nobody_knows_is_replayed(kind: str) -> None:
    loader = dealt(0, 2, drop_last=False, shuffle=True, even=kind != "uneven")
    if kind == "unseeded":
        loader = DataLoaderShard(loader.dataset, batch_sampler=BatchSampler(RandomSampler(loader.dataset), 2, False))
    elif kind == "not batched by number":
        loader = DataLoaderShard(loader.dataset, batch_sampler=[[0, 1], [2]])
    assert PreparedLoader(loader).known_order is None
    assert loader_kinds.kind_of(PreparedLoader(loader)) == "replay"


class Drawing(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)


def test_what_is_drawn_for_the_batch_ahead_is_in_doubt() -> None:
    text = sample_random.doubt(tracked_form(DataLoaderShard(Drawing(), batch_size=2)))
    assert text is not None and "Drawing draws for the batch that is loaded ahead" in text
    assert sample_random.doubt(tracked_form(DataLoaderShard(sample_random.PerSampleRandom(Drawing())))) is None
    assert sample_random.doubt(tracked_form(dealt(0, 1, drop_last=False, shuffle=True))) is None
    assert sample_random.doubt(DataLoader(Drawing(), 2)) is None


def test_accelerates_own_count_which_is_a_batch_ahead_stays_out() -> None:
    loader = tracked_form(dealt(0, 1, drop_last=False, shuffle=True))
    assert isinstance(loader.known_order, DealtOrder) and not hasattr(loader, "state_dict")
    assert loader_kinds.kind_of(loader) == "distributed" and len(loader) == 5
    plain = DataLoader(TensorDataset(torch.arange(10)), 2)
    assert tracked_form(plain) is plain
