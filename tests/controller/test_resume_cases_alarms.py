"""What agents tell of checkpoints that went wrong, as the attempt keeps it and the API gives it: resume cases R24
(storage at its quota), R28 (a run that begins from scratch), R02 (a script that says why it ends early)."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.api.job_json import job_json
from controller.clock import aware
from controller.ingest.receive import receive
from controller.models import Attempt, TrainingJob
from tests.builders import T0, event, message, record, sign
from tests.controller.test_ingest_saves import committed, send
from worker_hooks.protocol.messages import decode_message

pytestmark = pytest.mark.db
Maker = Callable[..., Any]
POINTER = "[Errno 122] Disk quota exceeded: '/scratch/ada/tj-1/.latest.7.0badc0de'"


def told(generation: int = 1) -> list[dict[str, Any]]:
    job = job_json(TrainingJob.objects.get(), aware(T0 + 500))
    (found,) = [attempt for attempt in job["attempts"] if attempt["generation"] == generation]
    return list(found["alarms"])


def tidy(seq: int, raw: str, **body: Any) -> dict[str, Any]:
    return sign(seq, "checkpoint_tidy", raw=raw, **({"layer": "storage", "source": "training"} | body))


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (POINTER, "storage.quota"),
        ("[Errno 28] No space left on device: '/scratch/latest'", "storage.no_space"),
        ("OSError: [Errno 30] Read-only file system: '/scratch/rank-00000.verified.json'", "storage.readonly"),
        ("[Errno 13] Permission denied: '/scratch/latest'", ""),
    ],
)
def test_a_pointer_that_cannot_be_written_is_an_alarm(make_job: Maker, raw: str, cause: str) -> None:
    """R24: the data are complete, so no save failed; people are told all the same, once for all of them."""
    job = make_job()
    send(job, committed(1, 10), tidy(2, "an older one", at=T0 + 10), tidy(3, raw, at=T0 + 50))
    send(job, committed(1, 10), tidy(2, "an older one", at=T0 + 10), tidy(3, raw, at=T0 + 50))
    send(job, tidy(4, raw, at=T0 + 60), sent_at=T0 + 110)
    assert told() == [{"code": "checkpoint_tidy", "cause": cause, "count": 3, "raw": raw, "at": T0 + 60}]


def test_a_save_that_failed_is_one_alarm_whatever_its_ranks_said(make_job: Maker) -> None:
    job = make_job()
    why = "saving step 20: [Errno 122] Disk quota exceeded: '/scratch/rank-00001.d/tensors.bin'"
    failed = record(3, "checkpoint", step=20, folder="step-00000020.g1", state="failed", reason=why)
    ranks = [sign(seq, "checkpoint_write", raw=why, layer="storage", source="training", rank=seq) for seq in (1, 2)]
    send(job, *ranks, failed)
    (alarm,) = told()
    assert (alarm["code"], alarm["cause"], alarm["count"], alarm["raw"]) == ("save_failed", "storage.quota", 1, why)


@pytest.mark.parametrize(
    ("messages", "row"),
    [
        (["FF", "F"], (3, 1)),
        (["F", "C", "FF"], (2, 3)),
        (["CF", "F"], (2, 2)),
        (["F", "FC"], None),
        (["F", "FCF"], (1, 4)),
        (["C"], None),
    ],
)
def test_the_saves_that_failed_since_the_last_committed_one(
    make_job: Maker, messages: list[str], row: tuple[int, int] | None
) -> None:
    """R24: counted over messages, from the first of the row on, each record once."""
    job, seq = make_job(), 0
    for number, letters in enumerate(messages):
        records = []
        for letter in letters:
            seq += 1
            state = {"F": "failed", "C": "committed"}[letter]
            at, folder = T0 + seq, f"step-{seq:08}.g1"
            records.append(record(seq, "checkpoint", at, step=seq, folder=folder, state=state, reason=f"why {seq}"))
        for _ in range(2):
            send(job, *records, sent_at=T0 + 100 + number)
    failing = Attempt.objects.get().saving.get("failing")
    assert (failing and (failing["count"], failing["since"] - T0)) == row
    assert row is None or failing["raw"] == f"why {seq}"


def test_words_of_the_jobs_own_log_are_no_alarm(make_job: Maker) -> None:
    send(make_job(), tidy(1, POINTER, source="job_log"), sign(2, "storage.quota", raw=POINTER, source="job_log"))
    assert told() == []


@pytest.mark.parametrize(
    ("loaded", "first", "alarm"),
    [
        ([], 1, True),
        ([{"step": 0, "folder": ""}], 1, True),
        ([{"step": 61240, "folder": "step-00061240.g1"}], 61241, False),
        ([{"step": 512, "folder": "step-00000512.g1"}], 513, False),
    ],
)
def test_a_run_that_begins_from_scratch_beside_its_checkpoints(
    make_job: Maker, loaded: list[dict[str, Any]], first: int, alarm: bool
) -> None:
    """R28: step 61240 was saved, and the next attempt makes step 1."""
    job = make_job()
    send(job, committed(1, 512), committed(2, 61240), event(3, "first_step", step=1))
    assert told() == []
    second = [event(seq, "loaded", **data) for seq, data in enumerate(loaded, start=1)]
    records = [*second, event(len(second) + 1, "first_step", step=first)]
    receive(job, decode_message(message(*records, generation=2)), T0 + 200)
    found = [(item["code"], "61240 was committed in attempt 1" in item["raw"]) for item in told(2)]
    assert found == ([("restarted_from_scratch", True)] if alarm else [])


def test_a_first_attempt_that_ended_before_its_first_save_is_no_alarm(make_job: Maker) -> None:
    job = make_job()
    send(job, event(1, "first_step", step=1))
    Attempt.objects.create(
        training_job=job, generation=2, slurm_job_id="7", created_at=aware(T0), first_step_at=aware(T0 + 9)
    )
    assert told(2) == []


def test_what_fresh_start_gave_up_is_told_once(make_job: Maker) -> None:
    job = make_job()
    raw = "RESTARTED_FROM_SCRATCH allowed by fresh_start: step-00000003.g1: manifest.json: not JSON"
    send(job, sign(1, "restarted_from_scratch", raw=raw, layer="storage", source="training"))
    assert [(alarm["code"], alarm["raw"]) for alarm in told()] == [("restarted_from_scratch", raw)]


def test_why_a_script_ends_early_is_kept(make_job: Maker) -> None:
    """R02: the first word counts, as the script gave it."""
    job = make_job()
    send(job, event(1, "finished", rank=0, step=80, early="no better for 5 epochs" + 300 * "."))
    send(job, event(2, "finished", rank=1, step=80, early="something else"), event(3, "finished", rank=2, step=80))
    attempt = Attempt.objects.get()
    assert attempt.early.startswith("no better for 5 epochs") and len(attempt.early) == 255
    assert attempt.finished_at is not None and attempt.step == 80
