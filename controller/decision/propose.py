"""propose(): one training job's facts -> what should change, with the reason. Pure.

Order: a live incident is advanced first; a new attempt that is hit before the recovery finished abandons the old
incident and opens its own. Without an incident the detectors look, and the plain course of the job is followed; so it
is beside an incident that only asks while the run goes on, until something worse hits that run.
"""

from dataclasses import dataclass, replace

from controller.decision import actions, advice, budget, by_hand
from controller.decision.attempt import ATTEMPT
from controller.decision.detectors import detect
from controller.decision.diagnosis import ASK, Verdict, diagnose
from controller.decision.facts import SubjectFacts
from controller.decision.findings import PREEMPTED, TIME_LIMIT, Finding, Suspicion
from controller.decision.follow import Course, beside, follow, follow_incident, hit_again
from controller.decision.incident import GOES_ON
from controller.decision.launch import SLURMS_HOLDS
from controller.decision.policy import Policy
from controller.decision.training_job import TRAINING_JOB

# What an ended attempt is called when an incident of this cause ended it.
OUTCOME_OF_CAUSE = {
    "node_lost": "node_lost",
    "many_nodes": "node_lost",
    "node_down": "node_failed",
    "node_sign": "node_failed",
    "node_failed": "node_failed",
    "process_died": "process_died",
    "user_error": "user_error",
    "time_limit": "time_limit",
    "deadline": "time_limit",
    "preempted": "preempted",
    "slurm_infra": "launch_failed",
    "start_failed": "launch_failed",
    "launch_limit": "launch_failed",
    "verification_failed": "verification_failed",
    "incomplete": "incomplete",
    "hang": "hung",
    "not_finite": "user_error",
    "saves_fail": "process_died",
    "gpu_hardware": "node_failed",
    "node_fault": "node_failed",
    "fabric": "node_failed",
    "host_oom": "process_died",
    "gpu_oom": "user_error",
    "config": "user_error",
    "data_or_storage": "process_died",
}

ASKED = "a person must look; nothing was requeued"


@dataclass(frozen=True)
class Proposal:
    """What one look at one training job asks for. Empty tuples and None mean: nothing of that kind.

    `incident_events` advance the live incident (or abandon it, when `verdict` opens another one); `job_event`,
    `attempt_event` and `attempt_outcome` are events of their tables; `ask` is the sentence for a person.
    """

    run_id: str
    reason: str
    verdict: Verdict | None = None
    plans: tuple[actions.ActionPlan, ...] = ()
    incident_events: tuple[str, ...] = ()
    job_event: str | None = None
    attempt_event: str | None = None
    attempt_outcome: str | None = None
    suspicion: Suspicion | None = None
    ask: str | None = None
    charge: str = "none"

    @property
    def empty(self) -> bool:
        return (
            self.verdict is None
            and not self.incident_events
            and self.job_event is None
            and self.attempt_event is None
            and self.suspicion is None
        )


def propose(subject: SubjectFacts, now: float, policy: Policy) -> Proposal:
    """Never raises for any facts; the reason is never empty."""
    if subject.state in TRAINING_JOB.final:
        return Proposal(subject.run_id, f"the training job is {subject.state}")
    abandon = False
    if subject.incident is not None:
        if not (hit_again(subject) or beside(subject)):
            return _from_course(subject, follow_incident(subject, now))
        abandon = True
    elif subject.state == "stopped":
        return _from_course(subject, follow(subject))
    found = detect(subject, now, policy)
    if isinstance(found, Suspicion):
        return Proposal(subject.run_id, found.reason, suspicion=found)
    if found is None:
        return _from_course(subject, follow_incident(subject, now) if abandon else follow(subject))
    verdict, ask = _judged(subject, found, now, policy)
    if _asked_already(subject, verdict):
        return _from_course(subject, follow_incident(subject, now))
    return _open(subject, verdict, ask, abandon)


def _from_course(subject: SubjectFacts, course: Course) -> Proposal:
    reason, changes = course
    return Proposal(subject.run_id, reason, **changes)


def _judged(subject: SubjectFacts, found: Finding, now: float, policy: Policy) -> tuple[Verdict, str | None]:
    """The verdict, and the sentence for a person. What can only be asked about ends no run that goes on."""
    verdict = diagnose(subject, found, now, policy)
    ask = _why_ask(subject, verdict, policy)
    return (replace(verdict, cause=found.cause) if ask and found.cause in GOES_ON else verdict), ask


def _asked_already(subject: SubjectFacts, verdict: Verdict) -> bool:
    incident = subject.incident
    return incident is not None and beside(subject) and not hit_again(subject) and verdict.cause == incident.cause


def _open(subject: SubjectFacts, verdict: Verdict, ask: str | None, abandon: bool) -> Proposal:
    plans = _plans_beside_asking(subject, verdict) if ask else _recovery_plans(subject, verdict)
    attempt = subject.attempt
    goes_on = verdict.cause in GOES_ON
    ends = attempt is not None and not goes_on and ATTEMPT.allows(attempt.state, "end")
    event = "stop" if ask else "fault"
    return Proposal(
        run_id=subject.run_id,
        reason=f"{verdict.summary}: {verdict.reason}" + (f"; {ask}" if ask else ""),
        verdict=verdict,
        plans=plans,
        incident_events=("abandon",) if abandon else (),
        job_event=event if TRAINING_JOB.allows(subject.state, event) and not goes_on else None,
        attempt_event="end" if ends else None,
        attempt_outcome=OUTCOME_OF_CAUSE[verdict.cause] if ends else None,
        ask=ask,
        charge="none" if ask else verdict.budget,
    )


def _why_ask(subject: SubjectFacts, verdict: Verdict, policy: Policy) -> str | None:
    """The sentence that a person reads when nothing is requeued, or None."""
    slurm = subject.slurm
    if verdict.stop:
        return verdict.stop
    if verdict.remedy == ASK:
        return advice.preempted(slurm) if verdict.cause == PREEMPTED and slurm is not None else ASKED
    if not subject.enrolled:
        return "the job is not enrolled, or Slurm has not confirmed its owner: it is only watched"
    if slurm is None:
        return "Slurm does not show the job any more; nothing to requeue"
    if slurm.unsupported:
        return f"the job is only watched, nothing was requeued: {'; '.join(slurm.unsupported)}"
    if not slurm.batch:
        return advice.not_batch(slurm)
    if not slurm.requeue:
        return advice.no_requeue(slurm, subject.scheduler)
    if slurm.base == "PENDING" and slurm.held_by is not None and slurm.held_by not in SLURMS_HOLDS:
        return f"the job is held by {slurm.holder}; a hold that is not ours is not released"
    if verdict.cause == TIME_LIMIT and (refusal := budget.no_progress_in_time(subject, policy.budget)):
        return refusal
    return budget.refusal(verdict.budget, subject.spent, policy.budget)


def _plans_beside_asking(subject: SubjectFacts, verdict: Verdict) -> tuple[actions.ActionPlan, ...]:
    """A node that has proved bad is held though this job stops; for every other reason to ask nothing is written."""
    holds = _holds(subject, verdict) if verdict.stop and subject.enrolled else ()
    return (*holds, _notify(subject, verdict, 3 if holds else 0))


def _recovery_plans(subject: SubjectFacts, verdict: Verdict) -> tuple[actions.ActionPlan, ...]:
    slurm = subject.slurm
    assert slurm is not None  # _why_ask has refused it
    requeue = actions.ActionPlan(
        actions.REQUEUE,
        slurm.job_id,
        2,
        {
            "exclude": list(verdict.exclude),
            "restarts_before": verdict.restarts,
            "run_id": subject.run_id,
            "owner": slurm.user,
            "by_hand": by_hand.requeue(slurm.job_id, verdict.exclude, slurm.excluded_nodes),
        },
        reason=verdict.summary + (f"; the next start waits {verdict.delay_s:g} s" if verdict.delay_s else ""),
        delay_s=verdict.delay_s,
    )
    return (*_holds(subject, verdict), requeue, _notify(subject, verdict, 3))


def _holds(subject: SubjectFacts, verdict: Verdict) -> tuple[actions.ActionPlan, ...]:
    return tuple(
        actions.ActionPlan(
            actions.HOLD_NODE, name, 1, _hold_params(subject, name), optional=True, reason=verdict.summary
        )
        for name in verdict.hold
    )


def _hold_params(subject: SubjectFacts, name: str) -> dict[str, object]:
    node = subject.nodes.get(name)
    lost = any(p.node == name and p.vantage == "controller" and p.silent for p in subject.probes)
    return {"adopt": node is not None and node.drained_by_somebody, "down": lost}


def _notify(subject: SubjectFacts, verdict: Verdict, order: int) -> actions.ActionPlan:
    params = {"summary": verdict.summary, "reason": verdict.reason}
    return actions.ActionPlan(actions.NOTIFY, subject.run_id, order, params, optional=True, reason=verdict.summary)
