"""The running aggregate of an attempt's loss, as messages come in, and as facts."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.ingest.receive import receive
from controller.models import Attempt
from controller.snapshot import progress
from tests.builders import T0, losses, message
from worker_hooks.protocol.messages import decode_message

pytestmark = pytest.mark.db
Maker = Callable[..., Any]


def send(job: Any, sent_at: float, *records: dict[str, Any]) -> None:
    receive(job, decode_message(message(*records, sent_at=sent_at)), sent_at)


def bad(record: dict[str, Any], *values: Any) -> dict[str, Any]:
    return {**record, "values": list(values)}


def test_rank_0s_loss_is_followed_over_messages_and_every_ranks_nan_is_kept(make_job: Maker) -> None:
    job = make_job()
    send(job, T0 + 1, losses(1, list(range(1, 21))), losses(2, [1, 2], rank=1))
    send(job, T0 + 2, bad(losses(3, [21, 22], rank=1), 0.1, "NaN"), losses(4, [21, 22]))
    send(job, T0 + 3, bad(losses(5, [23, 24]), "NaN", "Infinity"), bad(losses(6, [25], name="grad_norm"), "-Infinity"))
    kept = Attempt.objects.get().losses
    facts = progress.losses(kept)
    state = facts["loss"]
    assert (state.count, state.last_finite_step, state.bad_since, state.bad_steps) == (24, 22, 23, 2)
    assert state.recent == () and len(kept["state"]["recent"]) == 22
    assert [(n.rank, n.name, n.step) for n in facts["not_finite"]] == [
        (1, "loss", 22),
        (0, "loss", 23),
        (0, "grad_norm", 25),
    ]


def test_a_message_that_comes_twice_counts_once(make_job: Maker) -> None:
    job = make_job()
    for _ in range(2):
        send(job, T0 + 1, losses(1, list(range(1, 21))))
    assert Attempt.objects.get().losses["state"]["count"] == 20


def test_other_metrics_leave_no_aggregate(make_job: Maker) -> None:
    send(make_job(), T0 + 1, losses(1, [1, 2], name="lr"), losses(2, [1, 2], rank=1))
    assert Attempt.objects.get().losses == {} and progress.losses({}) == {}
