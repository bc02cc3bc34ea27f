"""propose(): one training job's facts -> what should change, with the reason. Pure.

Order: a live incident is advanced first; a new attempt that is hit before the recovery finished abandons the old
incident and opens its own. Without an incident the detectors look, and the plain course of the job is followed.
"""

from dataclasses import dataclass

from controller.decision import actions, budget, by_hand
from controller.decision.attempt import ATTEMPT
from controller.decision.detectors import detect
from controller.decision.diagnosis import ASK, Verdict, diagnose
from controller.decision.facts import SubjectFacts
from controller.decision.findings import Suspicion
from controller.decision.follow import Course, follow, follow_incident, hit_again
from controller.decision.policy import Policy
from controller.decision.training_job import TRAINING_JOB

# What an ended attempt is called when an incident of this cause ended it.
OUTCOME_OF_CAUSE = {
    "node_lost": "node_lost",
    "many_nodes": "node_lost",
    "node_down": "node_failed",
    "node_failed": "node_failed",
    "process_died": "process_died",
    "user_error": "user_error",
    "time_limit": "time_limit",
    "verification_failed": "verification_failed",
}


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
        if not hit_again(subject):
            return _from_course(subject, follow_incident(subject, now))
        abandon = True
    elif subject.state == "stopped":
        return _from_course(subject, follow(subject))
    found = detect(subject, now, policy)
    if isinstance(found, Suspicion):
        return Proposal(subject.run_id, found.reason, suspicion=found)
    if found is None:
        return _from_course(subject, follow_incident(subject, now) if abandon else follow(subject))
    return _open(subject, diagnose(subject, found), policy, abandon)


def _from_course(subject: SubjectFacts, course: Course) -> Proposal:
    reason, changes = course
    return Proposal(subject.run_id, reason, **changes)


def _open(subject: SubjectFacts, verdict: Verdict, policy: Policy, abandon: bool) -> Proposal:
    ask = _why_ask(subject, verdict, policy)
    plans = (_notify(subject, verdict, 0),) if ask else _recovery_plans(subject, verdict)
    attempt = subject.attempt
    ends = attempt is not None and ATTEMPT.allows(attempt.state, "end")
    event = "stop" if ask else "fault"
    return Proposal(
        run_id=subject.run_id,
        reason=f"{verdict.summary}: {verdict.reason}" + (f"; {ask}" if ask else ""),
        verdict=verdict,
        plans=plans,
        incident_events=("abandon",) if abandon else (),
        job_event=event if TRAINING_JOB.allows(subject.state, event) else None,
        attempt_event="end" if ends else None,
        attempt_outcome=OUTCOME_OF_CAUSE[verdict.cause] if ends else None,
        ask=ask,
        charge="none" if ask else verdict.budget,
    )


def _why_ask(subject: SubjectFacts, verdict: Verdict, policy: Policy) -> str | None:
    """The sentence that a person reads when nothing is requeued, or None."""
    if verdict.remedy == ASK:
        return "a person must look; nothing was requeued"
    if not subject.enrolled:
        return "the job is not enrolled, or Slurm has not confirmed its owner: it is only watched"
    if subject.slurm is None:
        return "Slurm does not show the job any more; nothing to requeue"
    if subject.slurm.unsupported:
        return f"the job is only watched, nothing was requeued: {'; '.join(subject.slurm.unsupported)}"
    if not subject.slurm.requeue:
        return "the job forbids requeueing (--no-requeue)"
    if not subject.slurm.batch:
        return "only batch jobs can be requeued"
    if subject.slurm.held_by is not None and subject.slurm.base == "PENDING":
        return f"the job is held ({subject.slurm.held_by}); a hold that is not ours is not released"
    return budget.refusal(verdict.budget, subject.spent, policy.budget)


def _recovery_plans(subject: SubjectFacts, verdict: Verdict) -> tuple[actions.ActionPlan, ...]:
    slurm = subject.slurm
    assert slurm is not None  # _why_ask has refused it
    holds = tuple(
        actions.ActionPlan(
            actions.HOLD_NODE, name, 1, _hold_params(subject, name), optional=True, reason=verdict.summary
        )
        for name in verdict.hold
    )
    requeue = actions.ActionPlan(
        actions.REQUEUE,
        slurm.job_id,
        2,
        {
            "exclude": list(verdict.exclude),
            "restarts_before": subject.restarts_hit,
            "run_id": subject.run_id,
            "owner": slurm.user,
            "by_hand": by_hand.requeue(slurm.job_id, verdict.exclude, slurm.excluded_nodes),
        },
        reason=verdict.summary,
    )
    return (*holds, requeue, _notify(subject, verdict, 3))


def _hold_params(subject: SubjectFacts, name: str) -> dict[str, object]:
    node = subject.nodes.get(name)
    lost = any(p.node == name and p.vantage == "controller" and p.silent for p in subject.probes)
    return {"adopt": node is not None and node.drained_by_somebody, "down": lost}


def _notify(subject: SubjectFacts, verdict: Verdict, order: int) -> actions.ActionPlan:
    params = {"summary": verdict.summary, "reason": verdict.reason}
    return actions.ActionPlan(actions.NOTIFY, subject.run_id, order, params, optional=True, reason=verdict.summary)
