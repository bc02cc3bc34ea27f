"""The waker: never slow, never loud, and quiet while the broker is away."""

import threading
from itertools import pairwise

import pytest

from controller.ingest.waking import LONGEST_PAUSE_S, Waker

pytestmark = pytest.mark.pure
LIMIT_S = 30.0


def test_a_note_returns_while_the_broker_hangs_and_many_notes_are_one_wake() -> None:
    knocked, release, calls = threading.Event(), threading.Event(), []

    def wake() -> None:
        calls.append(1)
        knocked.set()
        release.wait(LIMIT_S)

    waker = Waker(wake=wake)
    waker.leave_note()
    assert knocked.wait(LIMIT_S)
    for _ in range(100):
        waker.leave_note()  # would hang here if it waited for the broker
    knocked.clear()
    release.set()
    assert knocked.wait(LIMIT_S)
    assert len(calls) == 2


def test_the_breaker_knocks_ever_less_often_and_closes_at_the_first_success() -> None:
    now, answers, calls = [0.0], [ConnectionError("away")] * 8, []

    def wake() -> None:
        calls.append(now[0])
        if answers:
            raise answers.pop()

    waker = Waker(wake=wake, monotonic=lambda: now[0])
    while answers:
        waker.knock()
        now[0] += 0.5
    pauses = [b - a for a, b in pairwise(calls)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    now[0] += LONGEST_PAUSE_S
    assert waker.knock() and waker.knock()


def test_a_wake_is_a_sweep_on_its_way_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    from controller.celery import app

    sent: list[str] = []
    monkeypatch.setattr(app, "send_task", lambda name, **options: sent.append(name))
    assert Waker().knock()
    assert sent == ["controller.sweep"]
