"""After a failed start: how long to wait, whether its node is held, and when to stop and ask.

- the first failure on a node keeps the node from this job; the job is started again after a back-off that doubles with
  each failure in a row;
- the second failure there by Slurm's own word, of this job or another, holds the node. Not when several nodes fail at
  the same time (what they share has failed), and not on the word of one job that fails elsewhere too;
- the second failure of this job on the same node (or where no node is known), and Slurm's own limit, stop the job: a
  person is asked. A release would only repeat it.
"""

from dataclasses import dataclass

from controller.decision.facts import SubjectFacts
from controller.decision.findings import LAUNCH_LIMIT, SLURM_INFRA, START_FAILED, Finding
from controller.decision.launch_facts import LaunchFact
from controller.decision.policy import Launch, Policy

CAUSES = frozenset({SLURM_INFRA, START_FAILED, LAUNCH_LIMIT})
# By Slurm's own word: what a hold may rest on.
SURE = frozenset({SLURM_INFRA, LAUNCH_LIMIT})
# More nodes than this with failed starts at the same time: not the nodes.
MANY_HOSTS = 2
SAME_TIME_S = 600.0
MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Judgement:
    """`hold`: nodes to take out. `stop`: the sentence for a person, "" to go on. `delay_s`: before the next start."""

    hold: tuple[str, ...] = ()
    stop: str = ""
    delay_s: float = 0.0


def judge(subject: SubjectFacts, finding: Finding, now: float, policy: Policy) -> Judgement:
    """For the causes in CAUSES."""
    row = in_a_row(subject)
    return Judgement(
        hold=_hold(subject, finding, now, policy.launch),
        stop=_stop(subject, finding, row, policy.launch),
        delay_s=backoff(len(row), policy.launch),
    )


def backoff(before: int, launch: Launch) -> float:
    """Seconds to wait after `before` failures in a row and one more."""
    return min(launch.backoff_s * 2.0 ** min(before, MOST_DOUBLINGS), launch.backoff_max_s)


def in_a_row(subject: SubjectFacts) -> list[LaunchFact]:
    """This job's failed starts since it last trained."""
    attempt, slurm = subject.attempt, subject.slurm
    trained = -1
    if attempt is not None and attempt.first_step_seen and slurm is not None and attempt.slurm_job_id == slurm.job_id:
        trained = attempt.restart_count
    return [each for each in subject.launches if each.run_id == subject.run_id and each.restarts > trained]


def _hold(subject: SubjectFacts, finding: Finding, now: float, launch: Launch) -> tuple[str, ...]:
    if finding.cause not in SURE:
        return ()
    sure = [each for each in subject.launches if each.cause in SURE and now - each.at <= launch.memory_s]
    lately = {host for each in sure if now - each.at <= SAME_TIME_S for host in each.hosts}
    if len(lately | set(finding.suspects)) > MANY_HOSTS:
        return ()
    own = {host for each in sure if each.run_id == subject.run_id for host in each.hosts} | set(finding.suspects)
    return tuple(host for host in finding.suspects if _often_enough(subject.run_id, host, sure, own, launch))


def _often_enough(run_id: str, host: str, sure: list[LaunchFact], own: set[str], launch: Launch) -> bool:
    there = [each for each in sure if host in each.hosts]
    only_this_job = all(each.run_id == run_id for each in there)
    return len(there) + 1 >= launch.hold_after and not (only_this_job and len(own) > 1)


def _stop(subject: SubjectFacts, finding: Finding, row: list[LaunchFact], launch: Launch) -> str:
    job_id = subject.slurm.job_id if subject.slurm is not None else "?"
    release = f"when that is repaired: scontrol release {job_id}"
    if finding.cause == LAUNCH_LIMIT:
        lifted = any(each.run_id == subject.run_id and each.cause == LAUNCH_LIMIT for each in subject.launches)
        if launch.release_at_limit and not lifted:
            return ""
        return f"Slurm holds the job after too many failed launches, and Relume leaves it so; {release}"
    again = sorted({host for each in row for host in each.hosts} & set(finding.suspects))
    if again:
        return f"the start failed on {', '.join(again)} before: nothing is started there again; {release}"
    if not finding.suspects and any(not each.hosts for each in row):
        return f"the start failed twice, and Slurm does not say where; {release}"
    return ""
