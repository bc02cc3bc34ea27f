"""What a run's own progress gives diagnosis to weigh."""

from dataclasses import replace

import pytest

from controller.decision.attempt_facts import LearnedPace
from controller.decision.losses import LossState, NotFinite, Spike
from controller.decision.progress_evidence import evidence
from tests.decision.quiet import NOW, POLICY, attempt, subject
from worker_hooks.signs.codes import layer_of

pytestmark = pytest.mark.pure


def told(**changes: object) -> list[tuple[str, str]]:
    pieces = evidence(subject(attempt=attempt(**changes)), NOW, POLICY)
    assert all(piece.layer == layer_of(piece.code) and piece.origin == "job" for piece in pieces)
    return [(piece.code, piece.raw) for piece in pieces]


def test_a_quiet_run_says_nothing() -> None:
    assert told() == [] and evidence(subject(attempt=None), NOW, POLICY) == ()


def test_a_pace_that_collapsed_sixty_fold() -> None:
    ((code, raw),) = told(learned={"step": LearnedPace(500, 0.6, 40.0, recent_s=37.0)})
    assert code == "progress.slow" and "62 times" in raw


@pytest.mark.parametrize(
    "pace",
    [LearnedPace(500, 0.6, 40.0, recent_s=2.0), LearnedPace(3, 0.6, 40.0, recent_s=37.0), LearnedPace(9, 0.6, 1.0)],
)
def test_a_pace_that_varies_or_is_hardly_known(pace: LearnedPace) -> None:
    assert told(learned={"step": pace}) == []


def test_losses_that_jumped_or_are_no_numbers() -> None:
    spikes = (Spike(120, 6.0, 3.5, 130), Spike(400, 9.0, 2.0))
    facts: dict[str, object] = {"loss": LossState(spikes=spikes), "not_finite": (NotFinite(3, "loss", 77),)}
    pieces = evidence(subject(attempt=attempt(**facts)), NOW, POLICY)
    assert [(p.code, p.rank, p.attrs.get("step"), p.attrs.get("healed")) for p in pieces] == [
        ("loss.not_finite", 3, 77, False),
        ("loss.spike", None, 120, True),
        ("loss.spike", None, 400, False),
    ]
    assert "back at step 130" in pieces[1].raw and "not back yet" in pieces[2].raw


def test_a_row_that_goes_on_is_told_once_with_its_length() -> None:
    going = LossState(last_step=149, last_finite_step=99, bad_since=100, bad_steps=50, not_finite=50)
    first = (NotFinite(0, "loss", 100), NotFinite(2, "grad_norm", 100))
    row, other = evidence(subject(attempt=attempt(loss=going, not_finite=first)), NOW, POLICY)
    assert (row.rank, row.count, row.attrs["step"], row.id) == (0, 50, 100, "progress:not_finite:g1:100")
    assert "50 times in a row" in row.raw and (other.rank, other.attrs["healed"]) == (2, False)
    longer = replace(going, last_step=150, bad_steps=51)
    assert evidence(subject(attempt=attempt(loss=longer)), NOW, POLICY)[0].id == row.id
    again = evidence(subject(attempt=attempt(generation=2, loss=going)), NOW, POLICY)[0]
    assert again.id != row.id, "another attempt's is another"


def test_what_was_no_number_and_is_one_again_is_told_as_healed() -> None:
    """A loss scaler skips such steps; while rank 0's loss is a number, nothing of it is in the weights."""
    fine = LossState(last_step=150, last_finite_step=150, not_finite=1)
    (piece,) = evidence(subject(attempt=attempt(loss=fine, not_finite=(NotFinite(3, "grad_norm", 4),))), NOW, POLICY)
    assert piece.attrs["healed"] is True and "later" in piece.raw
