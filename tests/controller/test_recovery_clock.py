"""Stamps, and what was lost and verified."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.clock import aware
from controller.models import Action, Checkpoint, Incident, MetricChunk, Recovery
from controller.queries.phases import phases_of
from controller.recovery_clock import refresh
from tests.builders import T0

pytestmark = pytest.mark.db
Maker = Callable[..., Any]


@pytest.fixture
def recovery(make_job: Maker, make_attempt: Maker) -> Recovery:
    job = make_job(gpus=16)
    before = make_attempt(job, 1, step=120, step_at=aware(T0 + 60), start_step=0)
    make_attempt(job, 2, start_step=100, launched_at=aware(T0 + 80), first_new_step_at=aware(T0 + 90))
    incident = Incident.objects.create(
        cluster=job.cluster,
        training_job=job,
        attempt=before,
        state="verifying",
        cause="node_lost",
        summary="s",
        reason="r",
        confidence=1.0,
        budget="infrastructure",
        detected_at=aware(T0 + 66),
        fault_at=aware(T0 + 61),
    )
    return Recovery.objects.create(incident=incident, training_job=job, from_attempt=before)


def refreshed(recovery: Recovery) -> Recovery:
    refresh(recovery.incident.cluster, T0 + 100)
    recovery.refresh_from_db()
    return recovery


def test_lost_steps_come_from_metric_times(recovery: Recovery) -> None:
    MetricChunk.objects.create(
        training_job=recovery.training_job,
        attempt=recovery.from_attempt,
        node="gpu1",
        seq=1,
        rank=0,
        name="loss",
        first_step=99,
        last_step=101,
        steps=[99, 100, 101],
        times=[T0 + 40, T0 + 42, T0 + 43],
        values=[1, 1, 1],
    )
    found = refreshed(recovery)
    assert (found.rpo_steps, found.rpo_s) == (20, pytest.approx(18.0))
    assert found.rpo_gpu_hours == pytest.approx(18.0 * 16 / 3600)
    assert found.stamps["launched"] == {"at": T0 + 80, "source": f"attempt:{found.to_attempt_id}:launched_at"}


def test_lost_steps_come_from_the_checkpoint_without_metrics(recovery: Recovery) -> None:
    Checkpoint.objects.create(
        training_job=recovery.training_job,
        folder="step-00000100.g1",
        step=100,
        generation=1,
        state="committed",
        committed_at=aware(T0 + 45),
        durable_s=2.0,
    )
    assert refreshed(recovery).rpo_s == pytest.approx(17.0)


def test_unknown_stays_unknown(recovery: Recovery) -> None:
    found = refreshed(recovery)
    assert found.rpo_steps == 20 and found.rpo_s is None and found.rpo_gpu_hours is None
    assert "loaded" not in found.stamps and found.verification == ""


def test_verification_is_as_good_as_its_worst_rank(recovery: Recovery) -> None:
    def said(outcome: str) -> dict[str, Any]:
        return {
            "outcome": outcome,
            "checks": [{"name": "loss", "outcome": outcome, "expected": "a", "actual": outcome}],
        }

    attempt = recovery.training_job.attempts.get(generation=2)
    attempt.checks = {"0": {"replay": said("PASS")}, "1": {"replay": said("DEGRADED")}}
    attempt.save()
    assert refreshed(recovery).verification == "", "not before the incident is over"
    Incident.objects.update(state="resolved", ended_at=aware(T0 + 95))
    found = refreshed(recovery)
    assert found.verification == "DEGRADED"
    assert found.checks == [
        {
            "name": "loss",
            "stage": "replay",
            "outcome": "DEGRADED",
            "ranks": 2,
            "agree": 1,
            "expected": "a",
            "actual": "DEGRADED",
        },
    ]
    attempt.checks["0"]["replay"] = said("FAIL")
    attempt.save()
    assert refreshed(recovery).verification == "FAIL"


def requeued(recovery: Recovery, **progress: float) -> None:
    Action.objects.create(
        incident=recovery.incident,
        key="requeue",
        kind="requeue_excluding",
        target="7",
        order=2,
        progress=progress,
        created_at=aware(T0),
        due_at=aware(T0),
        expires_at=aware(T0),
    )


def test_completing_and_the_queue_wait_are_phases(recovery: Recovery) -> None:
    stamps = {"killed_at": T0 + 67, "settled_at": T0 + 72, "requeued_at": T0 + 72, "released_at": T0 + 74}
    requeued(recovery, **stamps, running_at=T0 + 79)
    phases = {phase.name: phase.seconds for phase in phases_of(refreshed(recovery).stamps).phases}
    assert phases["torn_down"] == 5.0, "told to end, until the job left its nodes"
    assert phases["allocated"] == 5.0, "released, until it was given nodes"


def test_a_start_that_was_repeated_keeps_the_first_teardown(recovery: Recovery) -> None:
    requeued(recovery, killed_at=T0 + 78, settled_at=T0 + 72)
    found = refreshed(recovery).stamps
    assert found["torn_down"]["at"] == T0 + 72 and "killed" not in found


def test_a_start_that_nobody_saw_is_slurms_own(recovery: Recovery) -> None:
    """The job waited in the queue long after the action was over."""
    requeued(recovery, released_at=T0 + 74)
    job = recovery.training_job
    job.view = {"base": "RUNNING", "restarts": 1, "start_time": T0 + 78}
    job.save()
    assert refreshed(recovery).stamps["allocated"] == {"at": T0 + 78, "source": f"trainingjob:{job.pk}:view.start_time"}
    job.view = {"base": "RUNNING", "restarts": 2, "start_time": T0 + 95}
    job.save()
    assert refreshed(recovery).stamps["allocated"]["at"] == T0 + 78, "the view moves on, the stamp stays"


def test_a_planned_start_is_no_start(recovery: Recovery) -> None:
    requeued(recovery, released_at=T0 + 74)
    job = recovery.training_job
    job.view = {"base": "PENDING", "restarts": 1, "start_time": T0 + 500}
    job.save()
    assert "allocated" not in refreshed(recovery).stamps
