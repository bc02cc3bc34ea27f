"""Two web processes at once, with real threads and connections: every record counts once, the ack never lies."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from controller.models import AgentReport, Attempt, Checkpoint, MetricChunk, TrainingJob
from tests import builders as b

pytestmark = [pytest.mark.db, pytest.mark.django_db(transaction=True)]
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def no_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.ingest.door.WAKER.leave_note", lambda: None)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of `calls`, started together, each on a thread with its own database connection."""
    gate, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(index: int) -> None:
        try:
            gate.wait(LIMIT_S)
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    failed = [result for result in results if isinstance(result, Exception)]
    assert not failed, failed
    return results


def post(body: dict[str, Any]) -> Any:
    response = Client().post(
        "/api/v1/ingest",
        json.dumps(body).encode(),
        content_type="application/json",
        headers={"Authorization": f"Bearer {b.TOKEN}"},
    )
    assert response.status_code in (200, 409, 503), response.content
    return response


def test_the_same_first_message_eight_times_at_once() -> None:
    b.training_job()
    body = b.message(
        *[b.losses(i + 1, [i]) for i in range(20)], b.event(21, "rank_exited", 0, exit_code=1, signal=None)
    )
    answers = at_once(*[lambda: post(body) for _ in range(8)])
    assert {(a.status_code, a.json().get("acked")) for a in answers} == {(200, 21)}
    assert sorted(MetricChunk.objects.values_list("seq", flat=True)) == list(range(1, 21))
    assert (Attempt.objects.count(), AgentReport.objects.get().last_seq) == (1, 21)
    assert len(Attempt.objects.get().exits) == 1


def test_overlapping_batches_in_any_order() -> None:
    b.training_job()
    batches = [b.message(*[b.losses(s, [s]) for s in range(first, first + 10)]) for first in (1, 4, 8, 11, 15)]

    def deliver() -> None:
        for batch in batches:
            post(batch)

    at_once(*[deliver for _ in range(4)])
    assert post(batches[-1]).json()["acked"] == 24
    assert sorted(MetricChunk.objects.values_list("seq", flat=True)) == list(range(1, 25))


def test_agents_of_one_attempt_do_not_lose_each_others_writes() -> None:
    """Rank exits, verifications and log tails of four nodes meet in the same row."""
    b.training_job()
    nodes = [f"gpu{i}" for i in range(4)]

    def speak(index: int) -> None:
        for seq in range(1, 6):
            rank = index * 10 + seq
            records = (
                b.event(3 * seq - 2, "rank_exited", rank, exit_code=1, signal=None),
                b.verification(3 * seq - 1, rank),
                b.event(3 * seq, "rank_log", rank, tail=f"log of {rank}"),
            )
            keys: dict[str, Any] = {"node": nodes[index], "job": {"nodes": "gpu[0-3]"}, "sent_at": b.T0 + seq}
            assert post(b.message(*records, **keys)).json()["acked"] == 3 * seq

    at_once(*[lambda i=i: speak(i) for i in range(4)])
    attempt = Attempt.objects.get()
    ranks = {index * 10 + seq for index in range(4) for seq in range(1, 6)}
    assert {item["rank"] for item in attempt.exits} == ranks == {int(rank) for rank in attempt.checks}
    assert {int(rank) for rank in attempt.log_tail} == ranks


def test_two_generations_at_once() -> None:
    b.training_job()
    note = {"step": 100, "folder": "step-00000100.g1", "state": "committed"}

    def speak(generation: int) -> None:
        for seq in range(1, 8):
            post(b.message(b.record(seq, "checkpoint", **note), generation=generation, sent_at=b.T0 + seq))

    at_once(lambda: speak(1), lambda: speak(2), lambda: speak(1), lambda: speak(2))
    assert list(Attempt.objects.values_list("generation", "agents__last_seq").order_by("generation")) == [
        (1, 7),
        (2, 7),
    ]
    assert Checkpoint.objects.count() == 1


def test_the_step_never_falls_behind_whoever_commits_last() -> None:
    b.training_job()

    def speak(node: str, first: int) -> None:
        for step in range(first, 60, 2):
            post(b.message(node=node, sent_at=b.T0 + step, ranks=[b.rank(0, step=step)]))

    at_once(lambda: speak("gpu1", 0), lambda: speak("gpu2", 1))
    assert (Attempt.objects.get().step, TrainingJob.objects.get().step) == (59, 59)
