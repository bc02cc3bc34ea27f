"""How often a training job should save, from rows; and a save that a person asks for, until it is there."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from controller import commands, saving
from controller.clock import aware
from controller.decision.interval import optimum_s
from controller.decision.policy import CheckpointInterval
from controller.ingest.receive import receive
from controller.models import AuditEntry, Checkpoint, TrainingJob
from tests.builders import T0, attempt, cluster, message, rank, record, training_job
from worker_hooks.protocol.messages import decode_message

pytestmark = [pytest.mark.db, pytest.mark.django_db]
Maker = Callable[..., Any]
POLICY = CheckpointInterval()
DAY = 86400.0


def saved(job: Any, step: int, at: float, **columns: Any) -> None:
    values = {"generation": 1, "state": "committed", "blocked_s": 0.5, "durable_s": 20.0, **columns}
    Checkpoint.objects.create(
        training_job=job, folder=f"step-{step:08d}.g1", step=step, committed_at=aware(at), **values
    )


def instructions(job: Any, at: float) -> list[str]:
    found = receive(TrainingJob.objects.get(pk=job.pk), decode_message(message(sent_at=at)), at)
    return [order.kind for order in found.answer.instructions]


def test_nothing_is_advised_before_a_save_was_measured() -> None:
    job = training_job(state="training")
    attempt(job)
    saving.refresh(cluster(), T0 + 60.0, POLICY)
    assert TrainingJob.objects.get().saving == {}


def test_advice_rests_on_measured_costs_and_this_clusters_own_failures() -> None:
    job = training_job(state="training")
    attempt(job, nodes=[f"n{n}" for n in range(64)], launched_at=aware(T0 - 2 * DAY), created_at=aware(T0 - 2 * DAY))
    for number, blocked in enumerate([0.4, 0.5, 9.0]):
        saved(job, 100 * (number + 1), T0 + 900.0 * number, blocked_s=blocked)
    saving.refresh(cluster(), T0 + 2000.0, POLICY)
    found = TrainingJob.objects.get().saving
    assert (found["cost_s"], found["durable_s"], found["present_s"]) == (0.5, 20.0, 900.0)
    assert found["failures"] == 0
    assert found["node_days"] == pytest.approx(64 * (2 * DAY + 2000.0) / DAY, rel=1e-3)
    assert found["interval_s"] == pytest.approx(optimum_s(0.5, found["mtbf_s"]), rel=1e-6)
    assert 0.0 < found["lost_share"] < found["present_lost_share"]


def test_advice_is_renewed_once_a_minute_and_for_jobs_that_train() -> None:
    training, waiting = training_job(state="training"), training_job("tj-4f2a9c0b11df", state="queued")
    for job in (training, waiting):
        attempt(job)
        saved(job, 100, T0)
    saving.refresh(cluster(), T0 + 10.0, POLICY)
    saving.refresh(cluster(), T0 + 20.0, POLICY)
    assert TrainingJob.objects.get(pk=training.pk).saving["at"] == T0 + 10.0
    assert TrainingJob.objects.get(pk=waiting.pk).saving == {}
    saving.refresh(cluster(), T0 + 80.0, POLICY)
    assert TrainingJob.objects.get(pk=training.pk).saving["at"] == T0 + 80.0


def test_what_the_last_run_of_that_name_has_shown() -> None:
    assert saving.measured_before(training_job("tj-4f2a9c0b1100", name="mosaic")) == {}
    before = training_job("tj-4f2a9c0b1101", name="mosaic", step=300)
    for number, durable in enumerate([40.0, 45.0, 90.0]):
        saved(before, 100 * (number + 1), T0 + 900.0 * number, durable_s=durable)
    receive(before, decode_message(message(ranks=[rank(0, pace={"steps": 9, "step_median_s": 22.0})])), T0 + 100.0)
    assert saving.measured_before(training_job("tj-4f2a9c0b1102", name="mosaic")) == {"step_s": 22.0, "save_s": 45.0}
    assert saving.measured_before(training_job("tj-4f2a9c0b1103", name="other")) == {}
    assert saving.measured_before(training_job("tj-4f2a9c0b1104", name="mosaic", owner="eve")) == {}


def test_agents_are_told_the_interval(make_job: Maker) -> None:
    job = make_job()
    TrainingJob.objects.filter(pk=job.pk).update(saving={"at": T0, "interval_s": 240.0})
    found = receive(TrainingJob.objects.get(pk=job.pk), decode_message(message(sent_at=T0 + 1)), T0 + 1)
    assert found.answer.checkpoint_interval_s == 240.0


def test_a_save_that_is_asked_for_is_said_until_one_is_there_that_was_begun_since(make_job: Maker) -> None:
    job = make_job(state="training")
    instructions(job, T0 + 1)
    commands.save_now(TrainingJob.objects.get(pk=job.pk), who="ada", now=T0 + 100.0)
    assert AuditEntry.objects.get().what == "save_now"
    assert instructions(job, T0 + 101.0) == ["save"]
    saved(job, 10, T0 + 105.0)  # committed since, and begun 15 s before anybody asked
    assert instructions(job, T0 + 106.0) == ["save"]
    saved(job, 20, T0 + 125.0)
    assert instructions(job, T0 + 126.0) == []


def test_an_old_request_and_one_of_an_attempt_before_are_not_said(make_job: Maker) -> None:
    job = make_job(state="training")
    instructions(job, T0 + 1)
    commands.save_now(TrainingJob.objects.get(pk=job.pk), who="ada", now=T0 + 100.0)
    assert instructions(job, T0 + 100.0 + 601.0) == []
    TrainingJob.objects.filter(pk=job.pk).update(save_asked_at=aware(T0) - timedelta(seconds=1))
    assert instructions(job, T0 + 2.0) == []


def test_a_job_that_does_not_train_has_nothing_to_save() -> None:
    with pytest.raises(commands.CommandRefused, match="queued"):
        commands.save_now(training_job(state="queued"), who="ada", now=T0)


def test_a_checkpoint_that_was_read_back_is_verified_and_one_that_failed_is_none(make_job: Maker) -> None:
    job = make_job(state="training")

    def told(seq: int, state: str, step: int, **body: Any) -> dict[str, Any]:
        numbers = {"bytes": None, "blocked_s": None, "durable_s": None, "reason": None}
        return record(seq, "checkpoint", step=step, folder=f"step-{step:08d}.g1", state=state, **{**numbers, **body})

    records = [
        told(1, "committed", 10, bytes=5),
        told(2, "verified", 10, bytes=5),
        told(3, "committed", 20, bytes=5),
        told(4, "failed", 30, reason="tensors.bin: No space left on device"),
        told(5, "quarantined", 20, reason="rank 0: tensors.bin does not match its digest"),
        told(6, "verified", 20, bytes=5),
    ]
    receive(job, decode_message(message(*records, sent_at=T0 + 100)), T0 + 100)
    rows = {c.step: (c.state, c.bytes, c.verified_at is not None) for c in Checkpoint.objects.all()}
    assert rows == {10: ("committed", 5, True), 20: ("quarantined", 5, False), 30: ("failed", None, False)}


def test_each_tier_has_a_row_of_its_own_and_speaks_for_itself(make_job: Maker) -> None:
    """A step on both: what happens to one of them says nothing about the other. An older agent names no tier."""
    job = make_job(state="training")
    told = {"step": 10, "folder": "step-00000010.g1", "bytes": 5, "blocked_s": None, "durable_s": None, "reason": None}
    records = [
        record(1, "checkpoint", **told, state="committed", tier="local", copies=2),
        record(2, "checkpoint", **told, state="committed"),
        record(3, "checkpoint", **told, state="verified", tier="shared"),
        record(4, "checkpoint", **{**told, "reason": "failed verification"}, state="quarantined", tier="local"),
    ]
    receive(job, decode_message(message(*records, sent_at=T0 + 100)), T0 + 100)
    rows = {c.tier: (c.state, c.copies, c.verified_at is not None) for c in Checkpoint.objects.all()}
    assert rows == {"local": ("quarantined", 2, False), "shared": ("committed", None, True)}


def test_what_lies_on_the_nodes_answers_no_request_for_a_save(make_job: Maker) -> None:
    job = make_job(state="training")
    instructions(job, T0 + 1)
    commands.save_now(TrainingJob.objects.get(pk=job.pk), who="ada", now=T0 + 100.0)
    saved(job, 20, T0 + 125.0, tier="local")
    assert instructions(job, T0 + 126.0) == ["save"]


def test_the_interval_is_that_of_shared_saves() -> None:
    """Many quick saves on the nodes would otherwise make it look cheap and frequent."""
    job = training_job(state="training")
    attempt(job)
    for number in range(3):
        saved(job, 100 * (number + 1), T0 + 900.0 * number)
    for number in range(30):
        saved(job, number + 1, T0 + 60.0 * number, tier="local", blocked_s=0.01, durable_s=0.1)
    saving.refresh(cluster(), T0 + 2000.0, POLICY)
    found = TrainingJob.objects.get().saving
    assert (found["cost_s"], found["durable_s"], found["present_s"]) == (0.5, 20.0, 900.0)
