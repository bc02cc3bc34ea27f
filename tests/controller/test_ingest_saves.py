"""What agents tell of saves and checks, as the attempt keeps it."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.ingest.receive import receive
from controller.models import Attempt
from controller.queries.asked_saves import fold
from tests.builders import T0, event, message, record
from worker_hooks.protocol.messages import decode_message

pytestmark = pytest.mark.db
Maker = Callable[..., Any]


def send(job: Any, *records: dict[str, Any], sent_at: float = T0 + 100.0) -> None:
    receive(job, decode_message(message(*records, sent_at=sent_at)), sent_at)


def committed(seq: int, step: int, **more: Any) -> dict[str, Any]:
    return record(seq, "checkpoint", step=step, folder=f"step-{step:08}.g1", state="committed", **more)


def test_what_every_rank_tells_of_one_signal_is_one(make_job: Maker) -> None:
    job = make_job()
    for seq, rank, at in ((1, 0, T0 + 10.4), (2, 1, T0 + 10.0)):
        send(job, event(seq, "save_asked", rank=rank, at=at, kind="signal", id="1", step=40), sent_at=T0 + 20 + seq)
    send(job, event(3, "save_begun", rank=0, at=T0 + 12.0, step=41, why="the signal before the end"))
    send(job, event(4, "save_begun", rank=1, at=T0 + 12.5, step=41, why="the signal before the end"))
    send(job, event(5, "save_asked", rank=0, at=T0 + 30.0, kind="asked", id="7", step=50))
    saving = Attempt.objects.get().saving
    assert [(item["kind"], item["id"], item["at"]) for item in saving["asked"]] == [
        ("signal", "1", T0 + 10.0),
        ("asked", "7", T0 + 30.0),
    ]
    assert [(item["step"], item["at"]) for item in saving["begun"]] == [(41, T0 + 12.0)]
    assert "records_unknown" not in job.__class__.objects.get().facts


def test_what_saves_were_like_adds_up_and_a_message_that_comes_twice_counts_once(make_job: Maker) -> None:
    job = make_job()
    for _ in range(2):
        send(job, committed(1, 10, skipped=2, bytes_linked=5, in_pieces=False))
    send(job, committed(2, 20, skipped=1, bytes_linked=7, in_pieces=True), record(3, "run_facts", rank=0, waived="ema"))
    send(job, committed(4, 30, skipped="many", bytes_linked=-4, in_pieces="yes"))
    saving = Attempt.objects.get().saving
    assert saving == {"left_out": 3, "in_pieces": 1, "linked_bytes": 12, "waived": "ema"}


def test_what_passes_later_hides_no_spike_and_its_name_is_kept(make_job: Maker) -> None:
    """Each replayed step is a record of its own; the page shows the worst."""
    job = make_job()

    def replay(seq: int, outcome: str, **more: Any) -> dict[str, Any]:
        check = {"name": "loss", "outcome": outcome, "expected": "1", "actual": "9", **more}
        return record(seq, "verification", rank=0, stage="replay", step=10, outcome=outcome, checks=[check])

    send(job, replay(1, "PASS"), replay(2, "DEGRADED", code="LOSS_SPIKE", why="9 > 2"), replay(3, "PASS"))
    kept = Attempt.objects.get().checks["0"]["replay"]
    assert (kept["outcome"], kept["records"]) == ("DEGRADED", 3)
    assert (kept["checks"][0]["code"], kept["checks"][0]["why"]) == ("LOSS_SPIKE", "9 > 2")


@pytest.mark.parametrize(
    ("asked", "begun", "commits", "ended", "expected"),
    [
        ([10.0], [(5, 12.0)], [(5, 20.0)], 60.0, (1, 1, 40.0, None)),
        ([10.0], [], [(4, 9.0)], 60.0, (1, 0, None, 50.0)),
        ([10.0], [(5, 12.0)], [(4, 9.0)], None, (1, 0, None, None)),
        ([10.0, 11.0], [(5, 12.0)], [(5, 20.0)], 60.0, (2, 2, 40.0, None)),
        ([10.0, 30.0], [(5, 12.0)], [(5, 20.0)], 60.0, (2, 1, 40.0, 30.0)),
        ([], [(5, 12.0)], [(5, 20.0)], 60.0, (0, 0, None, None)),
        ([10.0], [(5, 12.0)], [(5, 70.0)], 60.0, (1, 1, 0.0, None)),
    ],
)
def test_an_ask_is_answered_by_a_save_begun_after_it_and_committed(
    asked: list[float], begun: list[tuple[int, float]], commits: list[tuple[int, float]], ended: Any, expected: Any
) -> None:
    saving = {"asked": [{"at": at} for at in asked], "begun": [{"step": step, "at": at} for step, at in begun]}
    found = fold(saving, commits, ended)
    assert (found.asked, found.committed, found.left_s, found.short_s) == expected
