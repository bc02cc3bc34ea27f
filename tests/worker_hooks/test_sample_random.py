"""Random numbers per sample: the same whatever the workers, and training's own generators are left alone."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from worker_hooks.training.data import sample_random
from worker_hooks.training.data.sample_random import PerSampleRandom, doubt
from worker_hooks.training.state import random_state

pytestmark = pytest.mark.torch


class Augmented(Dataset[torch.Tensor]):
    """Draws from all three global generators, as users' transforms do."""

    def __init__(self, size: int = 12) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [index, random.random(), float(np.random.rand())]
        return torch.cat([torch.tensor(drawn, dtype=torch.float64), torch.rand(1, dtype=torch.float64)])


class Batched(Augmented):
    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


def epoch_of(loader: DataLoader[Any], epoch: int) -> dict[int, list[float]]:
    """By sample id, what was drawn for it."""
    sample_random.tell_epoch(loader, epoch)
    rows = torch.cat(list(loader)).tolist()
    return {int(row[0]): row[1:] for row in rows}


def test_the_same_in_any_number_of_workers_order_and_batch_and_another_each_epoch() -> None:
    data = PerSampleRandom(Augmented(), seed=5)
    alone = epoch_of(DataLoader(data, 4), 1)
    persistent: DataLoader[Any] = DataLoader(data, 3, shuffle=True, num_workers=2, persistent_workers=True)
    other = epoch_of(persistent, 0)
    assert epoch_of(persistent, 1) == alone, "persistent workers know the epoch"
    assert all(other[index] != alone[index] for index in alone)
    assert len({tuple(drawn) for drawn in alone.values()}) == 12, "no two samples alike"
    assert epoch_of(DataLoader(PerSampleRandom(Augmented(), seed=6), 4), 1) != alone


def test_spawned_workers_know_the_epoch_too() -> None:
    data = PerSampleRandom(Augmented(4), seed=5)
    alone = epoch_of(DataLoader(data, 2), 3)
    assert epoch_of(DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn"), 3) == alone


def test_generators_of_the_process_are_as_before() -> None:
    data = PerSampleRandom(Augmented(), seed=5)
    before = random_state.capture()
    first = data[np.int64(3)]
    assert random_state.capture() == before
    assert torch.equal(data[3], first)
    random.random()
    assert torch.equal(data[3], first)


def test_they_are_as_before_after_an_exception_too() -> None:
    class Broken(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            super().__getitem__(index)
            raise ValueError(index)

    before = random_state.capture()
    with pytest.raises(ValueError, match="2"):
        PerSampleRandom(Broken())[2]
    assert random_state.capture() == before


def test_whole_batches_are_asked_for_only_if_the_user_says_so() -> None:
    singly = PerSampleRandom(Batched(), seed=5)
    together = PerSampleRandom(Batched(), seed=5, batched=True)
    assert singly.__getitems__ is None
    assert epoch_of(DataLoader(singly, 4), 1) == epoch_of(DataLoader(PerSampleRandom(Augmented(), seed=5), 4), 1)
    fours = epoch_of(DataLoader(together, 4), 1)
    assert fours == epoch_of(DataLoader(together, 4, num_workers=2), 1)
    assert fours != epoch_of(DataLoader(together, 3), 1), "one seed from the ids of the batch"


def test_what_has_no_sample_ids_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(TypeError, match="IterableDataset does not have"):
        PerSampleRandom(Stream())
    with pytest.raises(TypeError, match="Augmented has no __getitems__"):
        PerSampleRandom(Augmented(), batched=True)


class Quiet(Augmented):
    draws_random = False


@pytest.mark.parametrize(
    ("data", "workers", "doubted"),
    [
        (Augmented(), 0, False),  # the process's own generators are saved and restored
        (Augmented(), 2, True),
        (PerSampleRandom(Augmented()), 2, False),
        (Subset(PerSampleRandom(Augmented()), [1, 2]), 2, False),
        (Subset(Augmented(), [1, 2]), 2, True),
        (Quiet(), 2, False),
        (TensorDataset(torch.zeros(4)), 2, False),
        (ConcatDataset([TensorDataset(torch.zeros(4)), Quiet()]), 2, False),
        (ConcatDataset([TensorDataset(torch.zeros(4)), Augmented()]), 2, True),
    ],
)
def test_workers_that_draw_as_they_like_are_doubted(data: Any, workers: int, doubted: bool) -> None:
    found = doubt(DataLoader(data, 2, num_workers=workers))
    assert (found is not None) is doubted
    if found is not None:
        assert "in 2 loader workers starts anew: wrap it in PerSampleRandom" in found
