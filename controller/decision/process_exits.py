"""Detectors that read how processes ended: a rank that died, a job that ended badly, a check that failed."""

from controller.decision.attempt_facts import AttemptFact, RankExit
from controller.decision.facts import SubjectFacts
from controller.decision.findings import (
    DEADLINE,
    PREEMPTED,
    PROCESS_DIED,
    TIME_LIMIT,
    USER_ERROR,
    VERIFICATION_FAILED,
    Clue,
    Finding,
    Suspicion,
)
from controller.decision.launch import OUTPUT_FAILED_SIGNAL
from controller.decision.policy import Policy

# Deaths within this of the first one belong to it: the survivors' own errors follow within a fraction of a second.
SAME_MOMENT_S = 2.0
# Slurm queues a preempted job again at once, if at all.
QUEUED_AGAIN_WITHIN_S = 15.0
ENDED_BY_SOMEBODY = frozenset({"CANCELLED", "PREEMPTED", "COMPLETED", "TIMEOUT", "DEADLINE", "REVOKED", "SUSPENDED"})


def verification_failed(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """The resumed state is not the recorded one. `walk_back` says whether it is tried once more."""
    attempt = subject.live_attempt
    if attempt is None or not attempt.checks_failed:
        return None
    names = ", ".join(attempt.checks_failed)
    clue = Clue("process", "verification", f"g{attempt.generation}", "verification_failed", f"failed: {names}", now)
    return Finding(VERIFICATION_FAILED, f"checks that failed: {names}", clues=(clue,), fault_at=now)


def process_died(subject: SubjectFacts, now: float, policy: Policy) -> Finding | Suspicion | None:
    """A rank died by itself. Waits until the reports settled, Slurm was read again, and no agent is silent:
    survivors of a lost node die too, and so do ranks of a job that its user cancelled or requeued."""
    attempt = subject.live_attempt
    own = [e for e in attempt.exits if _by_itself(e)] if attempt is not None else []
    if attempt is None or not own or attempt.finished or subject.requeued_since:
        return None
    last_report = max(e.at for e in own)
    settled = now - last_report >= policy.limits.exit_settle_s
    read_since = subject.view_at is not None and subject.view_at >= last_report
    slurm = subject.slurm
    if not settled or not read_since or slurm is None or slurm.base in ENDED_BY_SOMEBODY:
        return None
    if slurm.completing and slurm.base == "UNKNOWN":
        return None  # being ended by Slurm: whether for its time limit, a cancel or a requeue it says afterwards
    if _somebody_silent(attempt, now) and not slurm.failed:
        return None
    return _exit_finding(attempt, own)


def job_ended_badly(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """Slurm's word on a job whose agents said nothing about its end."""
    slurm = subject.slurm
    if slurm is None or slurm.base not in ("FAILED", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE"):
        return None
    raw = f"job {slurm.job_id} {slurm.base} exit {slurm.exit_code} {slurm.reason}".strip()
    clue = Clue("slurm", "slurm", slurm.job_id, slurm.base, raw, subject.view_at or now)
    if slurm.base == "DEADLINE":
        return Finding(DEADLINE, f"job {slurm.job_id} reached its deadline", clues=(clue,), fault_at=clue.at)
    if slurm.base == "TIMEOUT":
        return None if slurm.completing else Finding(TIME_LIMIT, _time_used(subject), clues=(clue,), fault_at=clue.at)
    if slurm.exit_meaning == "verification_failed":
        text = "the job said so with its exit code"
        return Finding(VERIFICATION_FAILED, text, clues=(clue,), fault_at=clue.at)
    attempt = subject.attempt
    if attempt is not None and attempt.agents and any(_by_itself(e) for e in attempt.exits):
        return None  # process_died has the better story, a moment later
    if slurm.exit_signal == OUTPUT_FAILED_SIGNAL:
        text = f"its output file could not be opened (exit 0:{OUTPUT_FAILED_SIGNAL}): is the path of -o or -e there?"
        return Finding(USER_ERROR, text, clues=(clue,), fault_at=clue.at)
    if slurm.exit_meaning == "attempt_failed" or (slurm.base == "FAILED" and slurm.died_by_signal):
        return Finding(PROCESS_DIED, f"the attempt ended: {raw}", clues=(clue,), fault_at=clue.at)
    return Finding(USER_ERROR, f"the program ended by itself: {raw}", clues=(clue,), fault_at=clue.at)


def preempted_for_good(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """Preempted by a partition or QOS whose PreemptMode cancels. Where it requeues, the job is PENDING at once."""
    slurm = subject.slurm
    if slurm is None or slurm.base != "PREEMPTED" or slurm.completing or slurm.end_at is None:
        return None
    if now - slurm.end_at <= QUEUED_AGAIN_WITHIN_S:
        return None
    raw = f"job {slurm.job_id} PREEMPTED {slurm.reason}".strip()
    clue = Clue("slurm", "slurm", slurm.job_id, slurm.base, raw, slurm.end_at)
    return Finding(PREEMPTED, f"Slurm preempted job {slurm.job_id} and ended it", clues=(clue,), fault_at=slurm.end_at)


def _time_used(subject: SubjectFacts) -> str:
    slurm = subject.slurm
    assert slurm is not None
    limit = f" of {slurm.time_limit_s / 60:g} min" if slurm.time_limit_s else ""
    starts = subject.starts_before + slurm.restarts + 1
    return f"job {slurm.job_id} reached its time limit{limit} (start {starts} of this training job)"


def _by_itself(exit_: RankExit) -> bool:
    if exit_.torn_down or exit_.meaning == "superseded":
        return False
    return exit_.signal is not None or exit_.exit_code not in (0, None)


def _somebody_silent(attempt: AttemptFact, now: float) -> bool:
    """An agent that said nothing for 2 s and has not ended: its node may be the cause, so wait for node_lost."""
    return any(a.state != "ended" and now - a.received_at > 2.0 for a in attempt.agents)


def _exit_finding(attempt: AttemptFact, own: list[RankExit]) -> Finding:
    first = min(e.at for e in own)
    near = sorted((e for e in own if e.at - first <= SAME_MOMENT_S), key=lambda e: (e.at, e.rank))
    clues = tuple(
        Clue("process", "agent", f"rank {e.rank}", "rank_exited", f"rank {e.rank} on {e.node}: {_how(e)}", e.at)
        for e in near
    )
    if any(e.meaning == "verification_failed" for e in near):
        text = "a rank stopped with the code for it"
        return Finding(VERIFICATION_FAILED, text, clues=clues, fault_at=first)
    killed = [e for e in near if e.signal is not None]
    who = (killed or near)[0]
    cause = PROCESS_DIED if killed else USER_ERROR
    reason = f"rank {who.rank} on {who.node} {_how(who)}"
    return Finding(cause, reason, ranks=(who.rank,), clues=clues, fault_at=first, last_good_at=first)


def _how(exit_: RankExit) -> str:
    return f"killed by signal {exit_.signal}" if exit_.signal is not None else f"ended with exit code {exit_.exit_code}"
