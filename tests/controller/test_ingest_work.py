"""What ranks' own work took, as messages come in, and as facts."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controller.decision.policy import Policy
from controller.decision.straggler_evidence import MOST_RANKS_OF_A_NODE, STEPS, Window, evidence, read_windows
from controller.ingest.receive import receive
from controller.models import AgentReport, Cluster, TrainingJob
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


def test_the_slowest_and_the_fastest_that_can_be_told_give_a_ratio_that_is_a_number(make_job: Maker) -> None:
    """An infinite one could not be written with the decision, and the run would never be decided about."""
    job = make_job()
    steps = list(range(STEPS))
    told = [took(rank + 1, steps, [1e9 if rank == 0 else 1e-6] * STEPS, rank=rank) for rank in range(5)]
    told += [took(6, steps, [1e-320] * STEPS, rank=5)]
    send(job, T0 + 1, *told)
    (facts,), _ = read_facts(Cluster.objects.get(), T0 + 2, Policy())
    assert facts.attempt is not None
    (slow,) = evidence(facts.run_id, facts.attempt)
    assert (slow.rank, slow.attrs["slowdown"]) == (0, 1e15) and windows()[5].seconds == {}


def test_a_role_is_shown_without_what_a_terminal_would_obey_and_ranks_are_those_of_columns(make_job: Maker) -> None:
    job = make_job()
    send(
        job,
        T0 + 1,
        record(1, "run_facts", rank=1, role="a\x1b[31m\u202eb\nc"),
        record(2, "run_facts", rank=1 << 40, role="x"),
    )
    assert {rank: window.role for rank, window in windows().items()} == {1: "a [31m b c"}
