"""The ledger: which samples were repeated, skipped, left out or padded, over all attempts. Cases by their id."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.data.ledger import KEPT, Ledger, alarms, is_sound

pytestmark = pytest.mark.torch


def trained(*spans: tuple[int, int, int], size: int = 1000) -> tuple[Ledger, list[list[str]]]:
    """`(epoch, first, last)` of each attempt; the ledger and the alarms at each start, through JSON each time."""
    ledger, found = Ledger(), []
    for epoch, first, last in spans:
        ledger = Ledger.read(ledger.record())
        found.append(alarms(ledger.begin(epoch, first, ranks=2, size=size)))
        ledger.advance(last)
    return ledger, found


def test_r04_a_position_that_is_only_the_last_attempts_own_is_a_repeat() -> None:
    """30 and 10 consumed, then started at 10 instead of 40."""
    assert trained((0, 0, 30), (0, 30, 40), (0, 40, 50))[1] == [[], [], []]
    ledger, found = trained((0, 0, 30), (0, 30, 40), (0, 10, 11))
    assert found == [[], [], ["STEP_REPEAT"]]
    (entry,) = ledger.entries
    assert (entry.first, entry.last, entry.count) == (10, 40, 30)
    assert entry.text("samples") == "30 samples repeated: 10 to 39 of epoch 0"
    assert not is_sound([entry])


def test_r07_one_batch_too_few_is_a_repeat_of_that_batch() -> None:
    """Checkpoint after batch 10 of 2 samples; the resumed run begins with batch 10 again, counted from 1."""
    ledger, found = trained((0, 0, 20), (0, 18, 20))
    assert found[1] == ["STEP_REPEAT"] and ledger.totals["repeated"] == 2


def test_r08_a_skip_in_a_later_epoch_is_an_alarm() -> None:
    ledger, found = trained((1, 0, 500), (1, 500, 1000), (2, 500, 1000))
    assert found == [[], [], ["SAMPLES_SKIPPED"]]
    (entry,) = ledger.entries
    assert (entry.kind, entry.epoch, entry.first, entry.last) == ("skipped", 2, 0, 500)


def test_a_remainder_and_padding_are_named_once_and_are_no_alarm() -> None:
    ledger = Ledger()
    ledger.begin(0, 0, ranks=3, size=10)
    ledger.advance(9)
    ledger.end(10)
    ledger.end(10)
    assert [entry.text("samples") for entry in ledger.entries] == ["1 samples left out: 9 to 9 of epoch 0"]
    assert ledger.begin(0, 9, ranks=3, size=10) == [], "an epoch that was over when it was saved"
    ledger.end(10)
    ledger.begin(1, 0, ranks=3, size=10)
    ledger.advance(12)
    ledger.end(10)
    assert [entry.text("samples") for entry in ledger.entries[1:]] == ["2 samples padded: 10 to 11 of epoch 1"]
    assert is_sound(ledger.entries)
    assert ledger.text() == "0 repeated, 0 skipped, 1 left_out, 2 padded, 0 discarded, 0 unknown (samples)"


def test_an_epoch_that_the_loop_leaves_early_is_named_when_the_next_begins() -> None:
    ledger, found = trained((0, 0, 400), (1, 0, 10))
    assert found == [[], []]
    assert [(entry.kind, entry.first, entry.last) for entry in ledger.entries] == [("left_out", 400, 1000)]


def test_entries_are_bounded_and_totals_are_not() -> None:
    ledger = Ledger()
    for epoch in range(KEPT + 10):
        ledger.begin(epoch, 0, ranks=1, size=5)
        ledger.advance(4)
        ledger.end(5)
    assert (len(ledger.entries), ledger.totals["left_out"]) == (KEPT, KEPT + 10)


@given(st.integers(24, 300), st.integers(0, 4), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 12)), max_size=5))
def test_every_sample_exactly_once_whatever_the_numbers_of_ranks(
    size: int, epoch: int, attempts: list[tuple[int, int]]
) -> None:
    """Attempts of (ranks, samples per rank), then one rank for the rest: together the whole epoch's order."""
    seen: list[int] = []
    ledger: Any = Ledger()
    for ranks, count in attempts:
        count = min(count, (size - len(seen)) // ranks)
        assert ledger.begin(epoch, len(seen), ranks=ranks, size=size) == []
        samplers = [ResumableSampler(range(size), seed=3, num_replicas=ranks, rank=rank) for rank in range(ranks)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
            sampler.start_at(len(seen))
        parts = [list(sampler)[:count] for sampler in samplers]
        seen += [index for together in zip(*parts, strict=True) for index in together]
        ledger.advance(len(seen))
    rest = ResumableSampler(range(size), seed=3, num_replicas=1, rank=0)
    rest.set_epoch(epoch)
    whole = list(rest)
    rest.start_at(len(seen))
    assert [*seen, *rest] == whole and sorted(whole) == list(range(size))
    assert not ledger.entries
