"""One message in: everything it changes is committed in one transaction, and only then acked.

A message may come twice, late, or to two web processes at once; a record counts once, in its agent's order. A message
of a superseded generation still delivers its records, but its heartbeat says nothing any more.
"""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from controller.clock import aware
from controller.ingest import instructions, run_facts, sign_rows, store, work
from controller.ingest.changes import Changes
from controller.ingest.ranges import when
from controller.ingest.translate import check_ranges, heartbeat_step, next_in_row, translate
from controller.models import AgentReport, TrainingJob
from worker_hooks.protocol.answers import Answer
from worker_hooks.protocol.messages import Message


@dataclass(frozen=True)
class Received:
    """The answer, and whether the sweep should be woken now. `superseded` with nothing delivered is answered 409."""

    answer: Answer
    wake: bool = False
    only_superseded: bool = False


def receive(job: TrainingJob, message: Message, now: float) -> Received:
    """Raises MessageError before anything is written, and the database's own errors with nothing committed."""
    check_ranges(message)
    with transaction.atomic():
        if job.pk is None:
            job = store.first_word(job)
        newest = store.newest_generation(job)
        if message.generation < newest and not message.records:
            return _refuse(job, message, newest, now)
        return _take(job, message, newest, now)


def _refuse(job: TrainingJob, message: Message, newest: int, now: float) -> Received:
    """Nothing to deliver, and a newer generation exists: say so, write nothing."""
    known = AgentReport.objects.filter(
        attempt__training_job=job, attempt__generation=message.generation, node=message.node
    ).first()
    answer = Answer(known.last_seq if known else 0, now, (instructions.superseded(newest),))
    return Received(answer, only_superseded=True)


def _take(job: TrainingJob, message: Message, newest: int, now: float) -> Received:
    at, sent_at = aware(now), when(message.sent_at, "message.sent_at")
    attempt, new_attempt = store.attempt_of(job, message, at)
    report, new_report = store.lock_report(attempt, message, at, sent_at)
    current = message.generation >= newest
    told = message.agent.clock_offset_s
    offset = report.clock_offset_s if told is None else told
    records = next_in_row(message.records, report.last_seq)
    changes = translate(message, records, offset, now)
    stands = heartbeat_step(message, offset) if current else None
    if stands is not None:
        changes.reached(*stands)
    if attempt.world_size is None and changes.world_size is None and current:
        changes.world_size = len(message.ranks) * len(attempt.nodes) or None
    _write(job, message, changes, store.Place(attempt, current, new_attempt), at)
    report.last_seq += len(records)
    worked = bool(changes.work or changes.roles)
    if worked:
        report.work = work.merged(report.work, changes)
    fresh = new_report or (current and store.is_fresh(report, sent_at) and store.same_boot(report, message))
    store.save_report(report, message, fresh=fresh, now=at, sent_at=sent_at, also=("work",) if worked else ())
    orders = instructions.for_agent(job, attempt, message.node, max(newest, message.generation), now)
    answer = Answer(report.last_seq, now, orders, checkpoint_interval_s=job.saving.get("interval_s"))
    return Received(answer, wake=changes.decisive or new_attempt)


def _write(job: TrainingJob, message: Message, changes: Changes, place: store.Place, at: datetime) -> None:
    """In the order of locks: attempt, checkpoints and checks, training job."""
    attempt = place.attempt
    store.save_points(job, attempt, message.node, changes)
    if changes.signs:
        run_facts.count_lost(changes, sign_rows.of_agent(job, attempt, message.node, changes.signs, at))
    if changes.touches_attempt:
        store.save_attempt(attempt, changes)
    for note in sorted(changes.checkpoints, key=lambda item: item.folder):
        store.save_checkpoint(job, message.generation, note)
    for answer in changes.probes:
        store.answer_probe(job, message.node, answer, at)
    if changes.step is not None and changes.step_at is not None:
        store.save_step(job, attempt, changes.step, changes.step_at, newest=place.current)
    if place.current and place.created:
        store.save_slurm_job(job, message)
    if changes.touches_facts:
        run_facts.save_facts(job, changes)
