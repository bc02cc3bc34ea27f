"""Everything that diagnosis weighs about one training job, put to its facts."""

from collections.abc import Sequence
from dataclasses import replace

from controller.decision.attempt_facts import EndedAttempt
from controller.decision.facts import SubjectFacts
from controller.models import AgentReport, Attempt, TrainingJob
from controller.snapshot import signs, slurm_side
from controller.snapshot.remembered import Memory

MOST_ATTEMPTS = 20


def added(
    subject: SubjectFacts,
    job: TrainingJob,
    attempts: Sequence[Attempt],
    reports: Sequence[AgentReport],
    rows: signs.SignRows,
    memory: Memory,
    now: float,
) -> SubjectFacts:
    """`attempts`: oldest first. `reports`: of the newest one."""
    newest = attempts[-1] if attempts else None
    fault = rows.faults.get(job.pk)
    names = set(newest.nodes if newest is not None else ()) | set(subject.slurm.nodes if subject.slurm else ())
    began = newest.created_at.timestamp() if newest is not None else now
    live = subject.incident.incident_id if subject.incident is not None else None
    weighed = [
        *slurm_side.of_job(subject.slurm, subject.view_at),
        *slurm_side.of_nodes(subject.nodes, names, subject.view_at),
        *slurm_side.history(memory, names, job, began, live),
        *signs.said_about(rows, newest, fault),
    ]
    unreadable, clean = signs.readable(rows, names, now)
    return replace(
        subject,
        evidence=tuple(weighed[: signs.MOST_OF_A_SUBJECT]),
        evidence_left_out=max(0, len(weighed) - signs.MOST_OF_A_SUBJECT),
        rank_nodes=signs.rank_nodes(reports),
        addresses=signs.addresses(reports),
        gpus=signs.gpus_held(rows, reports),
        unreadable=unreadable,
        read_clean=clean,
        last_fault=fault,
        attempts_before=tuple(_ended(attempt, memory) for attempt in attempts[:-1][-MOST_ATTEMPTS:]),
    )


def _ended(attempt: Attempt, memory: Memory) -> EndedAttempt:
    return EndedAttempt(
        attempt.generation,
        attempt.start_step,
        attempt.step,
        attempt.outcome,
        tuple(attempt.nodes),
        memory.verdict(attempt),
        memory.lines(attempt),
    )
