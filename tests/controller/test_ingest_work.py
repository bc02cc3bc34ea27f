"""What ranks' own work took, as messages come in, and as facts."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controller.decision.policy import Policy
from controller.decision.straggler_evidence import MOST_RANKS_OF_A_NODE, STEPS, Window, read_windows
from controller.ingest.receive import receive
from controller.models import AgentReport, TrainingJob
from controller.snapshot.facts import read_facts
from tests.builders import T0, message, record
from worker_hooks.protocol.messages import decode_message

pytestmark = pytest.mark.db
Maker = Callable[..., Any]


def send(job: Any, sent_at: float, *records: dict[str, Any], **keys: Any) -> None:
    receive(job, decode_message(message(*records, sent_at=sent_at, **keys)), sent_at)


def took(seq: int, steps: list[int], values: list[Any], rank: int = 0, name: str = "compute_s") -> dict[str, Any]:
    times = [T0] * len(steps)
    return record(seq, "metrics", rank=rank, name=name, steps=steps, times=times, values=values)


def windows(node: str = "gpu1") -> dict[int, Window]:
    return read_windows(AgentReport.objects.get(node=node).work)


def test_each_rank_has_its_role_and_its_last_steps(make_job: Maker) -> None:
    job = make_job()
    role = record(1, "run_facts", rank=1, total_steps=900, role=" stage 1 ")
    send(job, T0 + 1, role, took(2, [1, 2], [0.25, 0.3]), took(3, [1], [0.4], rank=1), took(4, [1], [9], name="lr"))
    send(job, T0 + 2, took(5, list(range(3, 41)), [0.123456] * 38, rank=1), node="gpu1")
    assert windows()[0] == Window("", {1: 0.25, 2: 0.3})
    assert (windows()[1].role, windows()[1].seconds) == ("stage 1", dict.fromkeys(range(41 - STEPS, 41), 0.1235))
    assert TrainingJob.objects.get().facts == {"total_steps": 900}, "a rank's role is no fact of the job"


def test_each_agent_keeps_its_own(make_job: Maker) -> None:
    job = make_job()
    send(job, T0 + 1, took(1, [1], [0.5]))
    send(job, T0 + 1, took(1, [1], [0.75], rank=2), node="gpu2")
    assert (windows("gpu1"), windows("gpu2")) == ({0: Window("", {1: 0.5})}, {2: Window("", {1: 0.75})})


def test_what_is_no_duration_is_left_out_and_a_step_told_again_changes_nothing(make_job: Maker) -> None:
    job = make_job()
    send(job, T0 + 1, took(1, [1, 2, 3, 4, 5], [0.5, "NaN", "Infinity", -1.0, 0]))
    send(job, T0 + 1, took(1, [1], [7.0]))
    send(job, T0 + 2, took(2, [1, 6, 6], [8.0, 0.6, 0.7]))
    assert windows() == {0: Window("", {1: 0.5, 6: 0.6})}


def test_it_is_bounded(make_job: Maker) -> None:
    send(make_job(), T0 + 1, *(took(seq, [1], [0.5], rank=seq) for seq in range(1, MOST_RANKS_OF_A_NODE + 9)))
    assert len(windows()) == MOST_RANKS_OF_A_NODE
    assert len(AgentReport.objects.get().work) < 100 * MOST_RANKS_OF_A_NODE


@pytest.mark.parametrize("role", [None, 5, "", "  ", ["stage 0"]])
def test_a_role_that_is_no_text_says_nothing(make_job: Maker, role: object) -> None:
    send(make_job(), T0 + 1, record(1, "run_facts", rank=0, role=role), record(2, "run_facts", role="stage 0"))
    assert AgentReport.objects.get().work == ""


def test_the_poll_hands_it_on_without_another_query(make_job: Maker) -> None:
    job = make_job()
    send(job, T0 + 1)
    with CaptureQueriesContext(
        connection,
    ) as before:
        read_facts(job.cluster, T0 + 2, Policy())
    send(job, T0 + 2, took(1, [1], [0.5]))
    with CaptureQueriesContext(connection) as after:
        ((subject,), _) = read_facts(job.cluster, T0 + 3, Policy())
    assert len(after) == len(before)
    assert subject.attempt is not None and subject.attempt.work == (AgentReport.objects.get().work,)
