"""Readers on threads of their own, and what stands is said once: who hangs costs nobody else anything."""

import threading
import time
from dataclasses import replace

import pytest

from tests.worker_hooks.sensor_stage import eventually
from worker_hooks.sensor import rounds
from worker_hooks.sensor.rounds import Partly, Round
from worker_hooks.sensor.standing import AGAIN_S, Standing
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

HOT = Sign("gpu.throttled", "GPU 0 is throttled", "gpu", "nvml", "gn1", attrs={"gpu_uuid": "GPU-1", "reasons": "hw"})
DOWN = Sign("ib.link_downed", "mlx5_0 went down", "network", "infiniband", "gn1", attrs={"device": "mlx5_0", "port": 1})


class Hangs:
    """A driver that does not answer until `answers` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()

    def __call__(self, now: float) -> list[Sign]:
        self.asked += 1
        self.answers.wait(60)
        return [HOT]


def test_a_reader_that_never_returns_stops_nobody_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "HANGS_AFTER_S", 0.0)
    hangs, given, beats = Hangs(), [], []
    stuck = Round("nvml", hangs, 0.01, given.extend)
    other = Round("memory", beats.append, 0.01, given.extend)
    stuck.start()
    other.start()
    eventually(lambda: len(beats) > 20)
    assert hangs.asked == 1 and given == []
    assert stuck.status.startswith("does not come back, for ")
    assert not stuck.first.is_set() and other.first.is_set()
    hangs.answers.set()
    eventually(lambda: given == [HOT])
    eventually(lambda: hangs.asked > 1)
    eventually(lambda: stuck.status == "ok")


def test_a_reader_that_takes_its_time_is_not_called_hanging() -> None:
    hangs = Hangs()
    stuck = Round("nvml", hangs, 0.01, lambda signs: None)
    stuck.start()
    eventually(lambda: hangs.asked)
    assert stuck.status == "ok"
    hangs.answers.set()


def test_a_reader_that_fails_says_so_and_gives_no_sign() -> None:
    failures: list[Exception] = [OSError(5, "Input/output error"), RecursionError("x" * 9000), KeyError("serial")]
    given: list[Sign] = []

    def read(now: float) -> list[Sign]:
        if failures:
            raise failures.pop(0)
        return []

    one = Round("pcie", read, 5.0, given.extend)
    said = []
    for _ in range(4):
        one.once()
        said.append(one.status)
    assert said[0] == "OSError: [Errno 5] Input/output error"
    assert len(said[1]) == rounds.STATUS_CHARS and said[2] == "KeyError: 'serial'" and said[3] == "ok"
    assert given == [] and one.first.is_set()


def test_what_stands_is_not_said_again_because_the_reader_failed_in_between() -> None:
    given: list[Sign] = []
    answers: list[list[Sign] | Exception | None] = [[HOT], OSError("busy"), [HOT], Partly("GPU 1", [HOT]), None, [HOT]]

    def read(now: float) -> list[Sign] | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    one = Round("nvml", read, 5.0, given.extend)
    counts, said = [], []
    while answers:
        one.once()
        counts.append(len(given))
        said.append(one.status)
    assert counts == [1, 1, 1, 1, 1, 2]
    assert said == ["ok", "OSError: busy", "ok", "ok, but GPU 1", "absent", "ok"]


def test_what_stands_is_said_when_it_begins_and_now_and_then() -> None:
    standing = Standing()
    assert standing.due([HOT], 0.0) == [HOT]
    assert standing.due([replace(HOT, raw="GPU 0 is throttled, 300 W")], 5.0) == []
    assert standing.due([HOT], AGAIN_S - 0.1) == []
    assert standing.due([HOT], AGAIN_S) == [HOT]
    assert standing.due([HOT], AGAIN_S + 5.0) == []


def test_what_was_gone_for_a_round_is_new() -> None:
    standing = Standing()
    assert [len(standing.due(signs, 5.0 * k)) for k, signs in enumerate([[HOT], [], [HOT], [HOT]])] == [1, 0, 1, 0]


@pytest.mark.parametrize("name", ["device", "port", "counter", "pci", "gpu_uuid", "action", "reasons"])
def test_another_place_is_another_condition(name: str) -> None:
    standing = Standing()
    elsewhere = replace(HOT, attrs={**HOT.attrs, name: "another"})
    assert standing.due([HOT, elsewhere], 0.0) == [HOT, elsewhere]
    assert standing.due([elsewhere, HOT], 5.0) == []
    assert standing.due([HOT, replace(HOT, code="gpu.unreadable")], 10.0) == [replace(HOT, code="gpu.unreadable")]


def test_what_happened_between_two_readings_is_said_every_time() -> None:
    standing = Standing()
    assert [len(standing.due([DOWN, HOT], time_s)) for time_s in (0.0, 5.0, 10.0)] == [2, 1, 1]


def test_each_reader_remembers_its_own() -> None:
    given: list[Sign] = []
    for name in ("nvml", "pcie"):
        Round(name, lambda now: [HOT], 5.0, given.extend).once()
    assert given == [HOT, HOT]


def test_the_thread_tells_what_it_has_cost() -> None:
    def busy(now: float) -> list[Sign]:
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
        return []

    one = Round("nvml", busy, 5.0, lambda signs: None)
    one.start()
    eventually(lambda: one.cpu_s >= 0.01)
