"""What a run's own progress gives diagnosis to weigh."""

import pytest

from controller.decision.attempt_facts import AttemptFact, LearnedPace
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
        ("loss.not_finite", 3, 77, None),
        ("loss.spike", None, 120, True),
        ("loss.spike", None, 400, False),
    ]
    assert "back at step 130" in pieces[1].raw and "not back yet" in pieces[2].raw


def test_losses_alone_propose_nothing() -> None:
    """A hardware verdict from NaN alone needs a second sign; a healed spike is no incident."""
    from controller.decision.detectors import detect

    bad = LossState(bad_since=10, bad_steps=5000, not_finite=5000, spikes=(Spike(5, 9.0, 2.0),))
    of_run: AttemptFact = attempt(loss=bad, not_finite=(NotFinite(0, "loss", 10),))
    assert detect(subject(attempt=of_run), NOW, POLICY) is None
