"""What diagnosis is asked about a live training job: its facts as a case. Unknown stays unknown."""

from controller.decision import progress_evidence
from controller.decision.evidence import Case, PastAttempt
from controller.decision.facts import SubjectFacts
from controller.decision.policy import Policy

# Ends that say nothing about what was wrong.
NOBODYS = frozenset({"", "preempted", "time_limit", "requeued", "superseded", "cancelled", "finished"})


def case_of(subject: SubjectFacts, now: float, policy: Policy) -> Case:
    attempt = subject.attempt
    nodes = attempt.nodes if attempt is not None else subject.slurm.nodes if subject.slurm is not None else ()
    trained = any(
        e.nodes == nodes and e.step is not None and e.step > (e.start_step or 0) for e in subject.attempts_before
    )
    return Case(
        evidence=(*subject.evidence, *progress_evidence.evidence(subject, now, policy)),
        run_id=subject.run_id,
        rank_nodes=subject.rank_nodes,
        addresses=subject.addresses,
        nodes=nodes,
        node_facts=subject.nodes,
        slurm=subject.slurm,
        gpus=subject.gpus,
        unreadable=subject.unreadable,
        read_clean=subject.read_clean,
        finished=attempt is not None and attempt.finished,
        last_step=_last_step(subject),
        worked_before=trained or (attempt is not None and attempt.first_step_seen),
        cancelled_by_user=subject.slurm is not None and subject.slurm.base == "CANCELLED",
        attempts=tuple(PastAttempt(e.step, e.start_step, e.verdict, e.evidence) for e in subject.attempts_before),
        same_before=_same_before(subject),
        trusted=policy.trust_job_evidence,
        memory_s=policy.limits.strike_memory_s,
        now=now,
    )


def _last_step(subject: SubjectFacts) -> int | None:
    """The furthest of any attempt; 0 where agents speak and none ever told of a step."""
    attempt = subject.attempt
    own = [attempt.step] if attempt is not None else []
    steps = [step for step in (*own, *(e.step for e in subject.attempts_before)) if step is not None]
    if steps:
        return max(steps)
    return 0 if attempt is not None and attempt.agents else None


def _same_before(subject: SubjectFacts) -> int:
    """Earlier attempts in a row that failed and had got as far: nothing was gained since them."""
    attempt, count = subject.attempt, 0
    if attempt is None or attempt.step is None:
        return 0
    for earlier in reversed(subject.attempts_before):
        if earlier.outcome in NOBODYS or earlier.step is None or earlier.step < attempt.step:
            break
        count += 1
    return count
