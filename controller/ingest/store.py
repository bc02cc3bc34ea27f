"""Writes what a message changes. Every function runs inside the message's one transaction.

Locks are taken in one order: the agent's report, the attempt, the training job. `no_key` locks, because the chunks
inserted before them already hold key-share locks on the same rows. State columns are written by the ledger, never here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Max, Q, Value, When

from controller.ingest import losses, saves
from controller.ingest.changes import Changes, CheckpointNote, ProbeAnswer
from controller.models import AgentReport, Attempt, Checkpoint, MetricChunk, NodeCheck, TrainingJob
from controller.slurm import hostlist
from worker_hooks.protocol.machine import encode_machine
from worker_hooks.protocol.manifest import parse_folder
from worker_hooks.protocol.messages import Message, MessageError, encode_rank
from worker_hooks.protocol.records import OUTCOMES

MAX_NODES = 65536
MAX_RANK_ROWS = 16384
MAX_LOG_TAILS = 64
MAX_ADDRESSES = 8
# Reordering and repetition on the way never take this long: an older `sent_at` is then a clock that was set back.
CLOCK_SET_BACK_S = 60.0


@dataclass(frozen=True)
class Place:
    """Where a message belongs. `current`: no newer generation is known. `created`: this message made the attempt."""

    attempt: Attempt
    current: bool
    created: bool


def first_word(job: TrainingJob) -> TrainingJob:
    """An array's task was not heard of before: its row, which another message or the poll may just have made."""
    made: TrainingJob = TrainingJob.objects.bulk_create([job], ignore_conflicts=True)[0]
    return TrainingJob.objects.defer("view", "facts").get(run_id=made.run_id)


def newest_generation(job: TrainingJob) -> int:
    """0 before the first attempt. Attempts of scripts without an agent count too."""
    found: int | None = job.attempts.aggregate(newest=Max("generation"))["newest"]
    return found or 0


def attempt_of(job: TrainingJob, message: Message, now: datetime) -> tuple[Attempt, bool]:
    """The message's attempt and whether this message made it."""
    attempt, created = Attempt.objects.get_or_create(
        training_job=job,
        generation=message.generation,
        defaults={
            "slurm_job_id": message.job.slurm_job_id,
            "restart_count": message.job.restart_count,
            "nodes": _nodes(message),
            "created_at": now,
        },
    )
    if attempt.agentless:
        _adopt(attempt, message)
    return attempt, created


def _adopt(attempt: Attempt, message: Message) -> None:
    """Counted from Slurm's side before its agent spoke: now it has one."""
    attempt.agentless = False
    attempt.nodes = _nodes(message) or attempt.nodes
    attempt.save(update_fields=["agentless", "nodes"])


def _nodes(message: Message) -> list[str]:
    try:
        names = list(dict.fromkeys(hostlist.expand(message.job.nodes)))
    except ValueError as error:
        raise MessageError("message.job.nodes", str(error)) from None
    if len(names) > MAX_NODES:
        raise MessageError("message.job.nodes", f"more than {MAX_NODES} nodes")
    return names


def lock_report(attempt: Attempt, message: Message, now: datetime, sent_at: datetime) -> tuple[AgentReport, bool]:
    """This agent's row, locked until the end of the transaction, and whether it is new."""
    rows = AgentReport.objects.select_for_update(no_key=True)
    return rows.get_or_create(
        attempt=attempt,
        node=message.node,
        defaults={
            "received_at": now,
            "sent_at": sent_at,
            "state": message.agent.state,
            "leader": message.agent.leader,
        },
    )


def save_report(
    report: AgentReport, message: Message, *, fresh: bool, now: datetime, sent_at: datetime, also: Sequence[str] = ()
) -> None:
    """`fresh`: the heartbeat part is newer than what is there (silence is judged by `received_at`). `also`: columns
    that were set before."""
    columns = ["last_seq", *also]
    if message.machine is not None and not report.identity:
        report.identity = encode_machine(message.machine)
        columns.append("identity")
    if fresh:
        agent = message.agent
        report.received_at, report.sent_at = now, sent_at
        report.state, report.leader = agent.state, agent.leader
        report.boot_id, report.probe_port = message.boot_id or report.boot_id, agent.probe_port
        report.gpus = list(agent.gpus)
        report.addresses = {k[:64]: v[:255] for k, v in list(agent.addresses.items())[:MAX_ADDRESSES]}
        report.ranks = [encode_rank(rank) for rank in message.ranks]
        if agent.clock_offset_s is not None:
            report.clock_offset_s = agent.clock_offset_s
        columns += ["received_at", "sent_at", "state", "leader", "boot_id", "probe_port", "addresses", "ranks"]
        columns += ["clock_offset_s", "gpus"]
    report.save(update_fields=columns)


def same_boot(report: AgentReport, message: Message) -> bool:
    """An agent does not outlive its host's boot: what speaks in its name from another one is no sign of its life."""
    return not report.boot_id or not message.boot_id or report.boot_id == message.boot_id


def is_fresh(report: AgentReport, sent_at: datetime) -> bool:
    """The newest heartbeat wins; a repeated or overtaken message must not make a dead agent look alive."""
    age = (report.sent_at - sent_at).total_seconds()
    return age < 0 or age > CLOCK_SET_BACK_S


def save_points(job: TrainingJob, attempt: Attempt, node: str, changes: Changes) -> None:
    MetricChunk.objects.bulk_create(
        MetricChunk(
            training_job=job,
            attempt=attempt,
            node=node,
            seq=points.seq,
            rank=points.rank,
            name=points.name,
            first_step=min(points.steps),
            last_step=max(points.steps),
            steps=points.steps,
            times=points.times,
            values=points.values,
        )
        for points in changes.points
    )


def save_checkpoint(job: TrainingJob, generation: int, note: CheckpointNote) -> None:
    """One row for each folder and tier. A quarantine is final: no later word makes the folder good again."""
    if note.state == "verified":
        job.checkpoints.filter(folder=note.folder, tier=note.tier, state="committed").update(verified_at=note.at)
        return
    named = parse_folder(note.folder)
    row, created = Checkpoint.objects.select_for_update().get_or_create(
        training_job=job,
        folder=note.folder,
        tier=note.tier,
        defaults={
            "step": note.step,
            "generation": named[1] if named else generation,
            "state": note.state,
            "reason": note.reason,
            "copies": note.copies,
            "bytes": note.bytes,
            "blocked_s": note.blocked_s,
            "durable_s": note.durable_s,
            "committed_at": note.at,
        },
    )
    if created or row.state == "quarantined":
        return
    row.state, row.reason = note.state, note.reason or row.reason
    for name in ("bytes", "copies", "blocked_s", "durable_s"):
        if getattr(note, name) is not None:
            setattr(row, name, getattr(note, name))
    row.save(update_fields=["state", "reason", "bytes", "copies", "blocked_s", "durable_s"])


def answer_probe(job: TrainingJob, node: str, answer: ProbeAnswer, now: datetime) -> None:
    """Only a probe that this node was asked for, once. Another cluster's or node's id changes nothing."""
    NodeCheck.objects.filter(
        pk=answer.check, vantage=node, node__cluster=job.cluster_id, answered_at__isnull=True
    ).update(answered_at=now, outcome=answer.outcome)


def save_attempt(attempt: Attempt, changes: Changes) -> None:
    """Events, exits, checks and log tails; each event time is that of the first record that told it."""
    row = Attempt.objects.select_for_update(no_key=True).get(pk=attempt.pk)
    columns = {name for name in changes.stamps if getattr(row, name) is None}
    for name in columns:
        setattr(row, name, changes.stamps[name])
    if changes.start_step is not None and row.start_step is None:
        row.start_step, row.start_folder = changes.start_step, changes.start_folder
        columns |= {"start_step", "start_folder"}
    if changes.early and not row.early:
        row.early = changes.early
        columns.add("early")
    if changes.world_size:
        row.world_size = changes.world_size
        columns.add("world_size")
    if changes.exits:
        row.exits = _with_exits(row.exits, changes.exits)
        columns.add("exits")
    if changes.checks:
        row.checks = _with_checks(row.checks, changes.checks)
        columns.add("checks")
    if changes.losses or changes.not_finite:
        row.losses = losses.merged(row.losses, changes)
        columns.add("losses")
    if changes.saving:
        row.saving = saves.merged(row.saving, changes)
        columns.add("saving")
    if changes.log_tails:
        merged = row.log_tail | changes.log_tails
        row.log_tail = dict(list(merged.items())[:MAX_LOG_TAILS])
        columns.add("log_tail")
    if columns:
        row.save(update_fields=sorted(columns))


def _with_exits(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first exit of each rank counts: what killed it, not what its teardown said afterwards."""
    seen = {(item["rank"], item["node"]) for item in known}
    exits = list(known)
    for item in new:
        if (item["rank"], item["node"]) not in seen and len(exits) < MAX_RANK_ROWS:
            seen.add((item["rank"], item["node"]))
            exits.append(item)
    return exits


def _with_checks(known: dict[str, Any], new: list[dict[str, Any]]) -> dict[str, Any]:
    """{rank: {stage: newest of the worst verifications}}: what passes later hides no spike and no band. A newer record
    before the first step holds everything that the older one did. `records` counts them all."""
    checks = {rank: dict(stages) for rank, stages in known.items()}
    for item in new:
        rank, stage = str(item["rank"]), item["stage"]
        if rank not in checks and len(checks) >= MAX_RANK_ROWS:
            continue
        stages = checks.setdefault(rank, {})
        before = stages.get(stage)
        worse = before is not None and OUTCOMES.index(before["outcome"]) > OUTCOMES.index(item["outcome"])
        kept = before if before is not None and worse else item
        stages[stage] = {**kept, "records": (before["records"] if before else 0) + 1}
    return checks


def save_step(job: TrainingJob, attempt: Attempt, step: int, at: datetime, *, newest: bool) -> None:
    """The attempt's step only rises; the training job's is that of its newest attempt, so a restart sets it back."""
    if attempt.step is not None and attempt.step >= step:
        return
    later = Q(step__isnull=True) | Q(step__lt=step)
    if Attempt.objects.filter(later, pk=attempt.pk).update(step=step, step_at=at) and newest:
        TrainingJob.objects.filter(pk=job.pk).update(step=step, step_at=at)


def save_slurm_job(job: TrainingJob, message: Message) -> None:
    """A new attempt may run in another Slurm job than the last one; its owner is then confirmed anew."""
    said = message.job.slurm_job_id
    if said:
        TrainingJob.objects.filter(pk=job.pk).exclude(slurm_job_id=said).update(
            slurm_job_id=said,
            owner_confirmed=Case(When(slurm_job_id="", then=F("owner_confirmed")), default=Value(False)),
        )
