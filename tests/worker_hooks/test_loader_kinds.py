"""Every kind of loader continues where it was, says what it cannot, and accounts for what its workers loaded ahead."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.data.feed import Feed
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.sabotage import Sabotage
from worker_hooks.training.state import random_state

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 on torch 2.13
]


class Numbers(Dataset[int]):
    draws_random = False

    def __init__(self, size: int = 20) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


class Shard(IterableDataset[int]):
    """A shard that knows where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": torch.tensor([self.at, 1.5])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["seen"].tolist() == [state["at"], 1.5]
        self.at = state["at"]


def stateful(**options: Any) -> Any:
    return StatefulDataLoader(Numbers(), 2, **options)


def seeded(seed: int = 8) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributed(ranks: int = 1, size: int = 20, batch: int = 2, rank: int = 0, **options: Any) -> DataLoader[int]:
    data = Numbers(size)
    return DataLoader(data, batch, sampler=DistributedSampler(data, ranks, rank, seed=1, **options))


def resumable(ranks: int = 1, size: int = 20, batch: int = 2, rank: int = 0, **options: Any) -> DataLoader[int]:
    data = Numbers(size)
    sampler = ResumableSampler(data, seed=1, num_replicas=ranks, rank=rank)
    return DataLoader(data, batch, sampler=sampler, **options)


KINDS: dict[str, Any] = {
    "resumable": resumable,
    "resumable-workers": lambda: resumable(num_workers=2, persistent_workers=True),
    "distributed": distributed,
    "shuffle": lambda: DataLoader(Numbers(), 2, shuffle=True),
    "shuffle-own-generator": lambda: DataLoader(Numbers(), 2, shuffle=True, generator=seeded()),
    "sampler-own-generator": lambda: DataLoader(Numbers(), 2, sampler=RandomSampler(Numbers(), generator=seeded())),
    "in-order": lambda: DataLoader(Numbers(), 2),
    "no-batches": lambda: DataLoader(Numbers(), None, sampler=ResumableSampler(Numbers(), num_replicas=1, rank=0)),
    "shard": lambda: DataLoader(Shard(), 2),
    "stateful": lambda: stateful(shuffle=True),
    "stateful-own-generator": lambda: stateful(shuffle=True, generator=seeded()),
    "stateful-workers": lambda: stateful(shuffle=True, num_workers=2),
}


def feed(loader: Any, sabotage: str | None = None) -> Feed:
    return Feed(loader, Sabotage(sabotage))


def take(source: Feed, count: int = 99) -> list[Any]:
    found = []
    for batch in source.open():
        source.delivered()
        found.append(torch.as_tensor(batch).tolist())
        if len(found) == count:
            break
    return found


def stop(loader: Any, epoch: int, count: int) -> tuple[dict[str, Any], Any]:
    """Trained whole epochs before `epoch` and `count` batches of it; the position and random state, through JSON."""
    source = feed(loader)
    for before in range(epoch):
        source.set_epoch(before)
        take(source)
    source.set_epoch(epoch)
    iterator = source.open()
    for _ in range(count):
        next(iterator)
        source.delivered()
    return json.loads(json.dumps(source.position())), random_state.capture()


@pytest.mark.parametrize("done", [1, 6, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_r01_the_epoch_goes_on_in_its_own_order_and_later_epochs_are_whole(kind: str, done: int) -> None:
    """Stopped in epoch 1; loaded into a fresh loader of a process whose generators stand elsewhere."""
    torch.manual_seed(4)
    whole, orders = feed(KINDS[kind]()), []
    for epoch in range(3):
        whole.set_epoch(epoch)
        orders.append(take(whole))

    torch.manual_seed(4)
    position, state = stop(KINDS[kind](), 1, done)
    torch.manual_seed(99)
    resumed = feed(KINDS[kind]())
    resumed.resume(position)
    resumed.set_epoch(1)
    iterator = resumed.open()
    random_state.restore(state)
    found = []
    for batch in iterator:
        resumed.delivered()
        found.append(torch.as_tensor(batch).tolist())
    assert found == orders[1][done:]
    resumed.set_epoch(2)
    assert take(resumed) == orders[2]
    assert not [entry for entry in resumed.ledger.entries if entry.kind != "discarded"]
    assert resumed.checks()[0][:2] == ("data_ledger", "PASS")


# --- StatefulDataLoader ---------------------------------------------------------------------------------------------


def test_another_number_of_workers_is_an_error_that_says_so() -> None:
    position, _ = stop(stateful(num_workers=2), 0, 3)
    with pytest.raises(CheckpointMismatch, match="num_workers=2 at the save and has 0 now"):
        feed(stateful()).resume(position)


def test_reading_the_state_before_the_first_batch_draws_nothing() -> None:
    source = feed(stateful(shuffle=True))
    torch.manual_seed(4)
    before = random_state.capture()
    source.position()
    assert random_state.capture() == before


# --- what cannot be shared ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "drop_last", "entry"), [(3, False, "padded"), (3, True, "left_out"), (2, True, None)]
)
def test_padding_and_remainders_are_named(ranks: int, drop_last: bool, entry: str | None) -> None:
    source = feed(distributed(ranks, drop_last=drop_last))
    take(source)
    assert [found.kind for found in source.ledger.entries] == ([entry] if entry else [])
    last = source.position()["ledger"]["entries"]
    stretch = {"padded": (20, 21), "left_out": (18, 20)}
    assert [(found["first"], found["last"]) for found in last] == ([stretch[entry]] if entry else [])


def test_a_resumable_sampler_leaves_out_instead_of_padding() -> None:
    source = feed(resumable(3, size=20, batch=4, drop_last=True))
    take(source)
    assert [(found.kind, found.first, found.last) for found in source.ledger.entries] == [("left_out", 12, 20)]


def test_the_order_of_a_distributed_sampler_continues_on_other_ranks_where_batches_fit() -> None:
    """12 of 24 consumed by 3 ranks of 2: on 2 ranks of 3 exactly, on 2 ranks of 4 not at all."""
    position, _ = stop(distributed(3, size=24), 0, 2)
    assert position["consumed"] == 12
    rest = []
    for rank in range(2):
        resumed = feed(distributed(2, size=24, batch=3, rank=rank))
        resumed.resume(position)
        rest += [index for batch in take(resumed) for index in batch]
    order = [index for batch in take(feed(distributed(size=24))) for index in batch]
    assert sorted(rest) == sorted(order[12:])
    with pytest.raises(CheckpointError, match=r"12 samples .* no whole number of batches of 4 on 2 ranks"):
        feed(distributed(2, size=24, batch=4)).resume(position)


def test_a_position_of_each_ranks_own_is_unknown_on_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    position, _ = stop(DataLoader(Numbers(), 2, shuffle=True), 0, 3)
    monkeypatch.setattr("worker_hooks.training.data.loader_kinds.world_size", lambda: 2)
    resumed = feed(DataLoader(Numbers(), 2, shuffle=True))
    resumed.resume(position)
    resumed.open()
    name, outcome, _, told = resumed.checks()[0]
    assert (name, outcome) == ("data_ledger", "DEGRADED")
    assert "on 2 instead of 1 ranks samples may come twice or never" in told


@pytest.mark.parametrize(("kind", "alarm"), [(None, []), ("data", ["STEP_REPEAT"])])
def test_a_position_that_is_one_batch_off_is_in_the_ledger(kind: str | None, alarm: list[str]) -> None:
    """R07."""
    position, _ = stop(resumable(), 0, 4)
    resumed = feed(resumable(), kind)
    resumed.resume(position)
    resumed.open()
    assert resumed.checks()[0][3].split("; ")[:-1] == [
        *alarm,
        *(["2 samples repeated: 6 to 7 of epoch 0"] if alarm else []),
    ]


def test_workers_that_draw_are_degraded_with_the_reason() -> None:
    class Drawing(Numbers):
        draws_random = True

    data = Drawing()
    source = feed(DataLoader(data, 2, sampler=ResumableSampler(data, num_replicas=1, rank=0), num_workers=1))
    assert [(name, outcome) for name, outcome, *_ in source.checks()] == [
        ("data_ledger", "PASS"),
        ("sample_random", "DEGRADED"),
    ]


# --- loaded ahead -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "ahead"),
    [
        (lambda: resumable(num_workers=2, prefetch_factor=2), 8),  # 4 batches of 2
        (resumable, 0),
        (lambda: DataLoader(Numbers(), 2, num_workers=2, prefetch_factor=2), 4),  # batches: nobody knows more
        (lambda: stateful(num_workers=2, prefetch_factor=2), 4),
    ],
    ids=["resumable", "no workers", "replay", "stateful"],
)
def test_what_was_loaded_ahead_is_counted_and_loaded_again(make: Any, ahead: int) -> None:
    position, _ = stop(make(), 0, 3)
    assert position["prefetched"] == ahead
    resumed = feed(make())
    resumed.resume(position)
    rest = take(resumed)
    assert len(rest) == 7
    assert resumed.ledger.totals["discarded"] == ahead
    assert resumed.position()["prefetched"] == 0


def test_a_checkpoint_from_before_the_ledger_still_resumes() -> None:
    position, _ = stop(resumable(), 0, 4)
    old = {key: position[key] for key in ("epoch", "batches", "epoch_length", "consumed", "sampler_seed")}
    resumed = feed(resumable())
    resumed.resume(old)
    assert take(resumed) == take(feed(resumable()))[4:]
    assert resumed.checks()[0][1] == "PASS"
