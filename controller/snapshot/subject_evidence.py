"""Everything that diagnosis weighs about one training job, put to its facts."""

from collections.abc import Sequence
from dataclasses import replace

from controller.decision.attempt_facts import EndedAttempt
from controller.decision.evidence import JOB, Evidence
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
        *(piece for piece in signs.said_about(rows, newest, fault) if not _of_strangers(piece, subject)),
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


def _of_strangers(piece: Evidence, subject: SubjectFacts) -> bool:
    """A job's own word on a node that Slurm shows it not to be on: agents name their nodes themselves, and one that
    lies must not accuse other people's. Nothing is known of a start that Slurm does not show any more."""
    attempt, slurm = subject.attempt, subject.slurm
    if piece.origin != JOB or not piece.node or attempt is None or slurm is None or not slurm.nodes:
        return False
    shown = (slurm.job_id, slurm.restarts) == (attempt.slurm_job_id, attempt.restart_count)
    return shown and piece.node not in slurm.nodes


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
