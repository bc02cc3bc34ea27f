"""Resume cases of public reports about the place in the data, with relatives of each: R01 (the order of another epoch),
R04 (a place that counts from the last restart), R07 (a batch too few), R08 (a skip that is made again)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from worker_hooks import Run
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.data.feed import Feed
from worker_hooks.training.data.sample_random import tell_epoch
from worker_hooks.training.errors import CheckpointMismatch, VerificationFailed
from worker_hooks.training.resuming.resumption import Resumption
from worker_hooks.training.resuming.verify import Check
from worker_hooks.training.sabotage import Sabotage

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 on torch 2.13
]
SIZE, BATCH = 26, 4  # 7 batches, the last one is short
Checks = list[dict[str, Check]]
Make = Callable[[], Any]


class Numbers(Dataset[int]):
    draws_random = False

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """No `state_dict`: what was consumed is counted."""

    draws_random = False
    at, epoch = 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for number in range(SIZE):
            yield (number * 7 + self.epoch) % SIZE


class Shard(Stream):
    """With one. `forgets`: R08, the start that it was given is that of each epoch."""

    forgets = False

    def __iter__(self) -> Iterator[int]:
        start = self.at
        while self.at < SIZE:
            self.at += 1
            yield (self.at - 1) * 7 % SIZE
        self.at = start if self.forgets else 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Buckets(BatchSampler):
    """Sorts within two batches: the order is not the sampler's."""

    def __iter__(self) -> Iterator[list[int]]:
        ids = list(self.sampler)
        for start in range(0, len(ids), 2 * BATCH):
            near = sorted(ids[start : start + 2 * BATCH])
            yield from (near[at : at + BATCH] for at in range(0, len(near), BATCH))


class OwnDistributed(DistributedSampler[int]): ...


def sampled(kind: Callable[..., Sampler[int]], **options: Any) -> DataLoader[int]:
    data = Numbers()
    sampler = kind(data, num_replicas=1, rank=0, seed=1)
    if "batches" in options:
        return DataLoader(data, batch_sampler=options["batches"](sampler, BATCH, options.get("drop_last", False)))
    return DataLoader(data, BATCH, sampler=sampler, **options)


LOADERS: dict[str, Make] = {
    "resumable": lambda: sampled(ResumableSampler),
    "resumable, drop_last": lambda: sampled(ResumableSampler, drop_last=True),
    "resumable, batch sampler": lambda: sampled(ResumableSampler, batches=BatchSampler),
    "resumable, batch sampler, drop_last": lambda: sampled(ResumableSampler, batches=BatchSampler, drop_last=True),
    "resumable, own batch sampler": lambda: sampled(ResumableSampler, batches=Buckets),
    "resumable, 2 workers": lambda: sampled(ResumableSampler, num_workers=2),
    "distributed": lambda: sampled(DistributedSampler),
    "distributed, batch sampler": lambda: sampled(DistributedSampler, batches=BatchSampler),
    "own distributed": lambda: sampled(OwnDistributed),
    "shuffle": lambda: DataLoader(Numbers(), BATCH, shuffle=True),
    "stateful": lambda: StatefulDataLoader(Numbers(), BATCH, shuffle=True),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "shard": lambda: DataLoader(Shard(), BATCH),
}


def plain(make: Make, batches: int, says: Callable[[int], int] = int) -> list[list[int]]:
    """What a script without any interruption, and without `Run`, sees; `says`: the epoch that it tells its sampler."""
    torch.manual_seed(7)
    torch.nn.Linear(1, 1)
    loader, seen = make(), []
    for epoch in range(batches):
        tell_epoch(loader, says(epoch))
        for batch in loader:
            seen.append(batch.tolist())
            if len(seen) == batches:
                return seen
    raise AssertionError


def attempt(
    root: Path,
    make: Make,
    step: int,
    accumulation: int = 1,
    says: Any = None,
    own_loop: bool = False,
    half: bool = False,
) -> list[list[int]]:
    """The ids of each batch that went into an update. `own_loop`: nobody tells `run` the epochs. `half`: the block is
    left in the midst of the next accumulation."""
    torch.manual_seed(7)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader, seen, waiting = make(), [], []
    options = {"accumulation": accumulation, "total_steps": None if half else step, "strict": False}
    with Run(root=root, checkpoint_every=0, asynchronous=False, **options) as run:
        run.track(model=model, optimizer=optimizer, loader=loader)
        run.restore()
        for epoch in range(9) if own_loop else run.epochs(9):
            if says is not None:
                tell_epoch(loader, says(epoch))
            for batch in run.batches(loader):
                waiting.append(batch.tolist())
                if half and run.completed == step:
                    return seen
                if len(waiting) == run.accumulation:
                    model(batch.float()[:, None]).square().mean().backward()
                    optimizer.step()
                    seen += waiting
                    waiting = []
                    run.step()
            if run.over:
                break
    return seen


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """What each resume said before its first step."""
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)
    found: Checks = []

    def report(self: Resumption, stage: str, step: int, checks: list[Check]) -> None:
        if stage == "before_first_step":
            found.append({check.name: check for check in checks})

    monkeypatch.setattr(Resumption, "report", report)
    return found


def sound(told: Checks) -> None:
    """Nothing is wrong; what nobody can know is DEGRADED and has no code."""
    assert told
    for checks in told:
        assert {checks[name].outcome for name in ("data_ledger", "consumed")} == {"PASS"}, checks
        assert checks["data_position"].outcome in ("PASS", "DEGRADED") and checks["data_position"].code is None


def interrupted(root: Path, told: Checks, stops: list[int], make: Make, accumulation: int = 1) -> None:
    """The same batches as without an interruption, and every resume says so."""
    parts = [attempt(root, make, stop, accumulation=accumulation) for stop in stops]
    assert [batch for part in parts for batch in part] == plain(make, stops[-1] * accumulation)
    assert len(told) == len(set(stops)) - 1
    sound(told)


@pytest.mark.parametrize("kind", LOADERS)
def test_the_epoch_goes_on_in_its_own_order_and_later_ones_are_whole(tmp_path: Path, told: Checks, kind: str) -> None:
    """R01, R08: stopped within epoch 1, at its end, and after two more."""
    length = 6 if "drop_last" in kind else 7
    interrupted(tmp_path, told, [length + 3, 2 * length, 4 * length + 1], LOADERS[kind])


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("kind", ["resumable", "resumable, batch sampler", "distributed", "own distributed"])
def test_the_order_is_that_of_the_epoch_which_the_script_told(
    tmp_path: Path, told: Checks, kind: str, own_loop: bool
) -> None:
    """R01: its numbers need not be those of `run.epochs`. A loop of its own begins at 1 again, as nobody else knows."""
    first = 1 if own_loop else 0
    before = attempt(tmp_path, LOADERS[kind], 10, own_loop=own_loop, says=lambda epoch: epoch + 100)
    after = attempt(tmp_path, LOADERS[kind], 17, own_loop=own_loop, says=lambda epoch: epoch + first + 100)
    assert before + after == plain(LOADERS[kind], 17, says=lambda epoch: epoch + 100)
    sound(told)


def test_a_fresh_sampler_that_was_told_nothing_stands_in_the_right_epoch(tmp_path: Path, told: Checks) -> None:
    """R01 as it was reported: the order of epoch 0 after a restart in epoch 1."""
    make = LOADERS["own distributed"]
    first = attempt(tmp_path, make, 10, own_loop=True, says=int)
    assert first + attempt(tmp_path, make, 14, own_loop=True) == plain(make, 14)
    sound(told)


def test_an_order_that_is_not_what_was_saved_is_named(tmp_path: Path, told: Checks) -> None:
    """R01: the digest of the next ids is compared; the order is that of another seed, and the seed is not said."""
    attempt(tmp_path, LOADERS["resumable"], 10)

    def other() -> DataLoader[int]:
        loader = LOADERS["resumable"]()
        loader.sampler.shuffle = False
        return loader  # type: ignore[no-any-return]

    with pytest.raises(VerificationFailed, match=r"data_position: DATA_ORDER next_ids_digest\b"):
        attempt(tmp_path, other, 11)
    assert (told[-1]["data_position"].outcome, told[-1]["data_position"].code) == ("FAIL", "DATA_ORDER")


@pytest.mark.parametrize("kind", ["resumable", "shuffle", "shard"])
def test_four_interruptions_in_one_epoch_add_up(tmp_path: Path, told: Checks, kind: str) -> None:
    """R04: the place is absolute after each; one attempt ends before its first step."""
    interrupted(tmp_path, told, [8, 10, 11, 11, 13, 16], LOADERS[kind])
    assert [checks["consumed"].actual for checks in told] == [checks["consumed"].expected for checks in told]


@pytest.mark.parametrize(("kind", "accumulation"), [("resumable", 2), ("resumable", 3), ("shuffle", 3), ("shard", 2)])
def test_updates_keep_their_number_of_batches(tmp_path: Path, told: Checks, kind: str, accumulation: int) -> None:
    """R04, R07: one update takes batches of two epochs, and is all that its attempt does."""
    whole = 7 // accumulation
    interrupted(tmp_path, told, [1, whole, whole + 1, whole + 2], LOADERS[kind], accumulation)


@pytest.mark.parametrize("kind", ["resumable", "distributed", "shuffle", "stream"])
def test_batches_that_are_in_no_update_come_again(tmp_path: Path, told: Checks, kind: str) -> None:
    """R07: left after 2 updates of 2 and half a third; its gradient is not saved, so its batch is not consumed."""
    first = attempt(tmp_path, LOADERS[kind], 2, accumulation=2, half=True)
    assert first + attempt(tmp_path, LOADERS[kind], 3, accumulation=2) == plain(LOADERS[kind], 6)
    sound(told)


@pytest.mark.parametrize("kind", ["resumable", "distributed", "stream"])
@pytest.mark.parametrize("at", [1, 3, 7])
def test_a_batch_too_few_is_named(kind: str, at: int) -> None:
    """R07: saved after batch `at`; the sabotage of the position begins with batch `at` again, counted from 1."""
    source = Feed(LOADERS[kind](), Sabotage(None))
    iterator = source.open()
    for _ in range(at):
        next(iterator)
        source.delivered()
    again = Feed(LOADERS[kind](), Sabotage("data"))
    again.resume(source.position())
    again.open()
    name, outcome, _, _, code, why = again.checks()[0]  # type: ignore[misc]
    assert (name, outcome, code) == ("data_ledger", "DEGRADED", "STEP_REPEAT")
    assert "repeated" in why and again.actual()["batches"] == at - 1


@pytest.mark.parametrize(("change", "said"), [({"num_workers": 2}, "num_workers=0"), ({}, "batch_size=4")])
def test_a_count_of_other_batches_is_refused(tmp_path: Path, told: Checks, change: Any, said: str) -> None:
    """R07: an iterable without a state is moved on by whole batches, which have to be those that were consumed."""
    attempt(tmp_path, LOADERS["stream"], 3)
    size = BATCH if change else 2
    with pytest.raises(CheckpointMismatch, match=said):
        attempt(tmp_path, lambda: DataLoader(Stream(), size, **change), 4)


def test_a_skip_that_is_made_again_is_told(tmp_path: Path, told: Checks, capsys: pytest.CaptureFixture[str]) -> None:
    """R08: the dataset keeps the start that it was given for the resume."""

    def make() -> DataLoader[int]:
        data = Shard()
        data.forgets = True
        return DataLoader(data, BATCH)

    attempt(tmp_path, make, 3)
    assert "SAMPLES_SKIPPED" not in capsys.readouterr().err
    attempt(tmp_path, make, 12)  # the 4 batches that were left of epoch 0, 4 of epoch 1
    assert "SAMPLES_SKIPPED: 3 batches skipped: 0 to 2 of epoch 1" in capsys.readouterr().err
