"""Starts that failed: Slurm could not launch the job, or it ended in the second in which it began.

What Slurm shows for it (tried on 22.05):
- a node cannot set a start up (spool folder, Prolog, environment): the job is PENDING, held, and counted as restarted,
  "launch failed requeued held". Where a Prolog failed Slurm drains that node itself; it need not be the batch host;
- a node does not take the launch at all: Slurm requeues the job by itself, without a hold, until MaxBatchRequeue such
  failures; then it holds it ("JobHoldMaxRequeue", "launch failure limit exceeded requeued held");
- "JobLaunchFailure" is *not* one of them: it is what 22.05 says of a batch script that died of any signal.

The batch host of a failed start is gone from Slurm's answer a moment later, so the snapshot remembers it
(`last_start`). A node that only printed a message is never named.
"""

from dataclasses import dataclass

from controller.decision.facts import NodeFact, SlurmJobFact, SubjectFacts
from controller.decision.findings import LAUNCH_LIMIT, SLURM_INFRA, START_FAILED, USER_ERROR, Clue, Finding
from controller.decision.launch_facts import StartFact
from controller.decision.policy import Policy
from controller.decision.relaunch import in_a_row

HELD_FOR_LAUNCH = "launch-failed"
HELD_AT_LIMIT = "requeue-limit"
SLURMS_HOLDS = (HELD_FOR_LAUNCH, HELD_AT_LIMIT)

# What Slurm writes when it drains a node for a start that failed there.
SLURMS_REASONS = ("prolog error", "batch job complete failure", "slurmdspooldir is full")
# Slurm's drain and the requeue that it made for the same failure are that close.
SAME_MOMENT_S = 5.0
# A launch that no node takes is given up by Slurm after a few seconds; a job that ran longer has been launched.
GIVEN_UP_WITHIN_S = 10.0
AT_ONCE_S = 1.0
# So long accounting may still learn where a start failed.
ACCOUNTING_WAIT_S = 8.0
REFUSED = "launch_refused"
# slurmstepd's own exit: input or output of the job could not be set up on that node.
OUTPUT_FAILED_SIGNAL = 53


@dataclass(frozen=True)
class _Sign:
    """`restarts`: Slurm's count of the start that failed. `at`: when it did."""

    cause: str
    code: str
    words: str
    restarts: int
    at: float


def launch_failed(subject: SubjectFacts, now: float, policy: Policy) -> Finding | None:
    """A failed start that is not yet this job's live incident. An attempt that Slurm restarted since is ended first."""
    sign = sign_of(subject)
    if sign is None or subject.slurm is None or (subject.live_attempt is not None and subject.requeued_since):
        return None
    slurm, hosts = subject.slurm, _hosts(subject, sign)
    if not hosts and subject.scheduler.accounting and 0 <= now - sign.at < ACCOUNTING_WAIT_S:
        return None  # asked at each poll; the start waits longer than that anyway
    where = f" on {', '.join(hosts)}" if hosts else "; Slurm does not say on which node"
    raw = f"job {slurm.job_id} {slurm.base} {slurm.reason} Restarts={slurm.restarts}{where}"
    clues = [Clue("slurm", "slurm", slurm.job_id, sign.code, raw, sign.at)]
    clues += [_mark_clue(node, sign.at) for node in _marked(subject, sign)]
    if sign.cause == START_FAILED and (before := _soft_elsewhere(subject, hosts)):
        text = f"job {slurm.job_id} ended as it began on {', '.join(before)} and {', '.join(hosts)}: not a node's doing"
        return Finding(USER_ERROR, text, clues=tuple(clues), fault_at=sign.at, restarts=sign.restarts)
    return Finding(
        sign.cause,
        sign.words.format(job=slurm.job_id, where=where),
        suspects=hosts,
        clues=tuple(clues),
        fault_at=sign.at,
        restarts=sign.restarts,
    )


def sign_of(subject: SubjectFacts) -> _Sign | None:
    """What Slurm says about the newest start, if it failed and no agent of it ever spoke."""
    slurm = subject.slurm
    if slurm is None:
        return None
    if slurm.base == "PENDING" and not slurm.completing and slurm.held_by in SLURMS_HOLDS:
        return _held(subject, slurm)
    if slurm.base == "PENDING" or slurm.completing:
        return _given_up(subject, slurm)
    if _spoke(subject, slurm.restarts):
        return None
    if slurm.base == "BOOT_FAIL":
        words = "the nodes of job {job} did not boot{where}"
        return _Sign(SLURM_INFRA, "boot_fail", words, slurm.restarts, _ended_at(subject, slurm))
    return _ended_at_once(subject, slurm) if slurm.base == "FAILED" else None


def _held(subject: SubjectFacts, slurm: SlurmJobFact) -> _Sign:
    failed, at = max(0, slurm.restarts - 1), slurm.submit_at or subject.view_at or 0.0
    if slurm.held_by == HELD_AT_LIMIT:
        words = "Slurm holds job {job}: it could not be launched too often (MaxBatchRequeue), last{where}"
        return _Sign(LAUNCH_LIMIT, "requeue_limit", words, failed, at)
    if "user_env" in slurm.reason.lower().replace(" ", "_"):
        words = "the owner's environment for job {job} could not be read{where}; Slurm holds the job"
        return _Sign(START_FAILED, "user_env_failed", words, failed, at)
    return _Sign(SLURM_INFRA, "launch_failed", "Slurm could not launch job {job}{where} and holds it", failed, at)


def _given_up(subject: SubjectFacts, slurm: SlurmJobFact) -> _Sign | None:
    """Requeued by Slurm alone: the batch host did not take the launch. A person's requeue of a job that has just begun
    looks the same but for the host, which answers then."""
    start = subject.last_start
    if start is None or start.restarts != slurm.restarts - 1 or slurm.held_by is not None:
        return None
    host = subject.nodes.get(start.host)
    refused = host is not None and (not host.responding or _is_marked(host, slurm.submit_at or subject.view_at))
    until = slurm.submit_at if not slurm.completing else subject.view_at
    lived = until - start.start_at if until is not None and start.start_at is not None else 0.0
    if not refused or lived > GIVEN_UP_WITHIN_S or _spoke(subject, start.restarts):
        return None
    words = "Slurm queued job {job} again by itself: the launch was not taken{where}" + _nearly_held(subject)
    return _Sign(SLURM_INFRA, REFUSED, words, start.restarts, until or subject.view_at or 0.0)


def _nearly_held(subject: SubjectFacts) -> str:
    """Said before the last one: Slurm counts such failures, and holds the job at its limit."""
    limit = subject.scheduler.max_batch_requeue
    left = limit - sum(1 for launch in in_a_row(subject) if launch.code == REFUSED) - 1
    return f"; at the next failure Slurm holds the job (MaxBatchRequeue={limit})" if left == 1 else ""


def _ended_at_once(subject: SubjectFacts, slurm: SlurmJobFact) -> _Sign | None:
    """FAILED 1:0 within a second, or without output files: Slurm's own refusal looks like a script that fails at its
    first line. So only of a job that has trained before: its script is known to work."""
    if slurm.start_at is None or slurm.end_at is None or slurm.end_at - slurm.start_at > AT_ONCE_S:
        return None
    refused = (slurm.exit_code, slurm.exit_signal) == (1, 0) or slurm.exit_signal == OUTPUT_FAILED_SIGNAL
    if not refused or not _trained_before(subject, slurm):
        return None
    words = "job {job}, which has trained before, ended in the second in which it began{where}"
    return _Sign(START_FAILED, "ended_at_once", words, slurm.restarts, slurm.end_at)


def _ended_at(subject: SubjectFacts, slurm: SlurmJobFact) -> float:
    return slurm.end_at or subject.view_at or 0.0


def _spoke(subject: SubjectFacts, restarts: int) -> bool:
    attempt, slurm = subject.attempt, subject.slurm
    if attempt is None or slurm is None or not attempt.agents or attempt.slurm_job_id != slurm.job_id:
        return False
    return attempt.restart_count >= restarts


def _trained_before(subject: SubjectFacts, slurm: SlurmJobFact) -> bool:
    attempt = subject.attempt
    if attempt is None or not attempt.first_step_seen:
        return False
    return attempt.slurm_job_id != slurm.job_id or attempt.restart_count < slurm.restarts


# --- where --------------------------------------------------------------------------------------------------------


def _hosts(subject: SubjectFacts, sign: _Sign) -> tuple[str, ...]:
    """The nodes of the failed start that are to blame: those that Slurm drained for it, else the batch host."""
    slurm = subject.slurm
    marked = tuple(node.name for node in _marked(subject, sign))
    if marked or slurm is None:
        return marked
    if sign.code == "boot_fail":
        return _not_up(subject, slurm)
    host = slurm.batch_host or _host_of(subject.last_start, slurm, sign.restarts)
    return (host,) if host else ()


def _host_of(start: StartFact | None, slurm: SlurmJobFact, restarts: int) -> str:
    if start is not None and start.restarts == restarts:
        return start.host
    return slurm.nodes[0] if len(slurm.nodes) == 1 else ""


def _not_up(subject: SubjectFacts, slurm: SlurmJobFact) -> tuple[str, ...]:
    known = [subject.nodes[name] for name in slurm.nodes if name in subject.nodes]
    bad = tuple(sorted(node.name for node in known if node.down or not node.responding))
    return bad or (slurm.nodes if len(slurm.nodes) == 1 else ())


def _marked(subject: SubjectFacts, sign: _Sign) -> list[NodeFact]:
    return sorted((n for n in subject.nodes.values() if _is_marked(n, sign.at)), key=lambda node: node.name)


def _is_marked(node: NodeFact, at: float | None) -> bool:
    """Drained by Slurm itself for a failed start, at that moment. Older marks are about other starts."""
    if at is None or node.reason_at is None or "DRAIN" not in node.flags:
        return False
    return node.reason.strip().lower().startswith(SLURMS_REASONS) and abs(node.reason_at - at) <= SAME_MOMENT_S


def _mark_clue(node: NodeFact, at: float) -> Clue:
    raw = f"{node.name} was drained by Slurm: {node.reason}"
    return Clue("slurm", "slurm", node.name, "drained_by_slurm", raw, node.reason_at or at)


def _soft_elsewhere(subject: SubjectFacts, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Other hosts on which this job's start ended in the same way since it last trained."""
    rows = [each for each in in_a_row(subject) if each.cause == START_FAILED]
    return tuple(sorted({host for each in rows for host in each.hosts} - set(hosts))) if hosts else ()
