"""What an agent is told in the answer: probes, a stop; and what wakes the sweep."""

from typing import Any

import pytest

from controller.clock import aware
from controller.models import NodeCheck
from tests import builders as b
from tests.controller.ingest_desk import CLOCK, NOTE, NOW, acked, kinds, post
from worker_hooks.protocol.answers import decode_answer

pytestmark = pytest.mark.db


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The controller's clock stands at NOW; wakes are written down instead of sent."""
    wakes: list[str] = []
    monkeypatch.setattr(CLOCK, lambda: NOW)
    monkeypatch.setattr(NOTE, lambda: wakes.append("wake"))
    return wakes


def asked(node: Any, vantage: str = "gpu1", age: float = 1.0) -> Any:
    return NodeCheck.objects.create(
        node=node, vantage=vantage, address="10.77.0.2", port=6818, asked_at=aware(NOW - age)
    )


def test_an_agent_is_asked_for_the_fresh_probes_of_its_own_node(make_job: Any, make_node: Any) -> None:
    make_job()
    gpu2 = make_node("gpu2")
    fresh = asked(gpu2)
    asked(gpu2, age=11.0)
    asked(gpu2, vantage="gpu3")
    instruction = decode_answer(post(b.message()).json()).instructions
    targets = [{"node": "gpu2", "address": "10.77.0.2", "port": 6818}]
    assert [(i.kind, i.body) for i in instruction] == [("probe", {"id": str(fresh.pk), "targets": targets})]


def test_a_probe_is_answered_once_and_only_by_the_node_that_was_asked(make_job: Any, make_node: Any) -> None:
    make_job()
    gpu2 = make_node("gpu2")
    mine, foreign = asked(gpu2), asked(gpu2, vantage="gpu3")

    def answer(seq: int, check: Any, outcome: str) -> dict[str, Any]:
        return b.record(seq, "probe", id=str(check), node="gpu2", address="10.77.0.2", port=6818, outcome=outcome)

    invented = [answer(3, "9" * 30, "open"), answer(4, "; drop", "open"), answer(5, 10**15, "open")]
    response = post(b.message(answer(1, mine.pk, "timeout"), answer(2, foreign.pk, "timeout"), *invented))
    assert (response.json()["acked"], kinds(response)) == (5, [])
    acked(b.message(answer(6, mine.pk, "open"), sent_at=b.T0 + 101))
    mine.refresh_from_db()
    foreign.refresh_from_db()
    assert (mine.outcome, mine.answered_at, foreign.answered_at) == ("timeout", aware(NOW), None)


@pytest.mark.parametrize("state", ["cancelled", "stopped"])
def test_an_attempt_of_a_job_that_was_stopped_is_told_to_stop(make_job: Any, make_attempt: Any, state: str) -> None:
    job = make_job(state=state, state_reason="the budget is spent", state_at=aware(b.T0 + 50))
    make_attempt(job)
    answer = decode_answer(post(b.message()).json())
    assert [(i.kind, i.body) for i in answer.instructions] == [("stop", {"reason": "the budget is spent"})]


def test_an_attempt_that_somebody_started_by_hand_afterwards_is_left_alone(make_job: Any) -> None:
    make_job(state="stopped", state_at=aware(b.T0 + 50))
    assert kinds(post(b.message())) == []


# --- wakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "wakes"),
    [
        (b.losses(1, [1]), 0),
        (b.event(1, "rank_exited", 0, exit_code=1, signal=None), 1),
        (b.event(1, "first_step", 0, step=3), 1),
        (b.verification(1), 1),
        (b.record(1, "probe", id="1", node="gpu2", outcome="open"), 1),
    ],
)
def test_the_sweep_is_woken_by_what_is_decisive(
    make_job: Any, make_attempt: Any, quiet_world: list[str], record: dict[str, Any], wakes: int
) -> None:
    make_attempt(make_job())
    acked(b.message(record))
    assert len(quiet_world) == wakes


def test_a_new_attempt_wakes_the_sweep(make_job: Any, quiet_world: list[str]) -> None:
    make_job()
    acked(b.message())
    assert quiet_world == ["wake"]
