"""commit(): one decided subject, in one transaction: decision, incident with its evidence, holds, exclusions, actions,
and the state changes of training job and attempt.

Losing a race (another lease holder, an agent that spoke, a person) rolls all of it back and is normal: the next sweep
decides again from the facts of that moment.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction

from controller.clock import aware
from controller.decision import actions
from controller.decision.admit import Admission
from controller.decision.diagnosis import Verdict
from controller.decision.facts import ClusterFacts, SubjectFacts
from controller.decision.machine import RefusedTransition
from controller.decision.policy import Policy
from controller.decision.propose import OUTCOME_OF_CAUSE
from controller.ledger import records
from controller.ledger.moves import LostRace, allowed, move
from controller.models import Action, Attempt, Cluster, Decision, Incident, TrainingJob
from controller.revision import code_version

LEASE_S = 12.0


@dataclass(frozen=True)
class Commit:
    """What every subject of one sweep shares. `owner` must still hold the cluster's lease."""

    cluster: Cluster
    cluster_facts: ClusterFacts
    policy: Policy
    owner: str
    now: float


def commit(admission: Admission, subject: SubjectFacts, sweep: Commit) -> Incident | None:
    """The incident that was opened or advanced, or None. Raises LostRace, with nothing written."""
    try:
        with transaction.atomic():
            _keep_lease(sweep)
            job = TrainingJob.objects.get(run_id=subject.run_id)
            if admission.proposal.verdict is None:
                return _advance(admission, subject, job, sweep)
            return _open(admission, subject, job, admission.proposal.verdict, sweep)
    except (IntegrityError, RefusedTransition) as error:
        raise LostRace(f"{subject.run_id}: {error}") from error


def _keep_lease(sweep: Commit) -> None:
    """Renews the lease in the same transaction: two holders cannot both commit."""
    until = aware(sweep.now + LEASE_S)
    if not Cluster.objects.filter(pk=sweep.cluster.pk, lease_owner=sweep.owner).update(lease_until=until):
        raise LostRace(f"{sweep.owner} does not hold the lease of {sweep.cluster.name} any more")


# --- the plain course -----------------------------------------------------------------------------------------


def _advance(admission: Admission, subject: SubjectFacts, job: TrainingJob, sweep: Commit) -> Incident | None:
    proposal = admission.proposal
    incident = _live_incident(subject)
    if incident is not None:
        for event in proposal.incident_events:
            _move_incident(incident, event, proposal.reason, proposal.ask, sweep.now)
        if proposal.incident_events:
            _decided(admission, subject, job, incident, sweep)
    _move_job_and_attempt(admission, subject, job, sweep.now)
    return incident


def _live_incident(subject: SubjectFacts) -> Incident | None:
    return Incident.objects.get(pk=subject.incident.incident_id) if subject.incident is not None else None


def _move_incident(incident: Incident, event: str, reason: str, ask: str | None, now: float) -> None:
    also: dict[str, Any] = {"ask": ask} if ask else {}
    move(incident, event, reason=reason, now=now, **also)
    if event in ("abandon", "ask", "resolve"):
        records.cancel_waiting_actions(incident, f"the incident is {incident.state}", now)


def _move_job_and_attempt(admission: Admission, subject: SubjectFacts, job: TrainingJob, now: float) -> None:
    proposal = admission.proposal
    attempt = _attempt(subject, job)
    if attempt is not None and proposal.attempt_event is not None:
        outcome = {"outcome": proposal.attempt_outcome, "outcome_reason": proposal.reason}
        also: dict[str, Any] = outcome if proposal.attempt_event == "end" and proposal.attempt_outcome else {}
        move(attempt, proposal.attempt_event, reason=proposal.reason, now=now, **also)
    if proposal.job_event is not None:
        move(job, proposal.job_event, reason=proposal.reason, now=now)


def _attempt(subject: SubjectFacts, job: TrainingJob) -> Attempt | None:
    if subject.attempt is None:
        return None
    return job.attempts.get(generation=subject.attempt.generation)


# --- a new incident ---------------------------------------------------------------------------------------------


def _open(
    admission: Admission, subject: SubjectFacts, job: TrainingJob, verdict: Verdict, sweep: Commit
) -> Incident | None:
    if admission.outcome == "defer":
        _deferred(admission, subject, job, sweep)
        return None
    attempt = _attempt(subject, job)
    if admission.outcome == "observe" and records.observed_already(job, attempt, verdict):
        return None
    before = _live_incident(subject)
    if before is not None:
        for event in admission.proposal.incident_events:
            _move_incident(before, event, admission.proposal.reason, None, sweep.now)
    incident = records.open_incident(sweep.cluster, job, attempt, subject, admission.proposal, verdict, sweep.now)
    _decided(admission, subject, job, incident, sweep)
    move(incident, "diagnose", reason=verdict.reason, now=sweep.now)
    _act_upon(admission, incident, sweep)
    if admission.outcome == "act" or admission.proposal.ask:
        _move_job_and_attempt(admission, subject, job, sweep.now)
    return incident


def _act_upon(admission: Admission, incident: Incident, sweep: Commit) -> None:
    proposal, now = admission.proposal, sweep.now
    if admission.outcome == "observe":
        move(incident, "observe", reason="; ".join(admission.notes), now=now)
        return
    waits = admission.outcome == "approve" and not proposal.ask
    records.plan_actions(incident, proposal, sweep.policy, now, waits=waits)
    if proposal.ask and any(plan.kind == actions.HOLD_NODE for plan in proposal.plans):
        # The node is held first; then the incident asks, with the sentence that it keeps meanwhile.
        move(incident, "act", reason=proposal.reason, now=now, ask=proposal.ask)
    elif proposal.ask:
        move(incident, "ask", reason=proposal.ask, now=now, ask=proposal.ask)
    elif waits:
        ask = "approve mode: the actions wait for a person's word"
        move(incident, "ask", reason=ask, now=now, ask=ask)
    else:
        move(incident, "act", reason=proposal.reason, now=now)


def _deferred(admission: Admission, subject: SubjectFacts, job: TrainingJob, sweep: Commit) -> None:
    """Written once for each reason, not once a second."""
    last = job.decisions.order_by("-pk").first()
    if last is None or last.outcome != "defer" or last.notes != list(admission.notes):
        _decided(admission, subject, job, None, sweep)


def _decided(
    admission: Admission, subject: SubjectFacts, job: TrainingJob, incident: Incident | None, sweep: Commit
) -> None:
    Decision.objects.create(
        training_job=job,
        incident=incident,
        at=aware(sweep.now),
        facts=subject.to_json(),
        cluster_facts=sweep.cluster_facts.to_json(),
        policy_digest=sweep.policy.digest(),
        code_version=code_version(),
        outcome=admission.outcome,
        reason=admission.proposal.reason,
        notes=list(admission.notes),
    )


# --- a person's word ---------------------------------------------------------------------------------------------


def approve(incident: Incident, *, by: str, reason: str, policy: Policy, now: float) -> None:
    """The proposed actions of an incident become ready; their time to live starts now. Raises LostRace or
    RefusedTransition when there is nothing to approve any more."""
    with transaction.atomic():
        proposed = list(Action.objects.filter(incident=incident, state="proposed"))
        if not proposed:
            raise LostRace(f"incident {incident.pk} has no action that waits for approval")
        until = aware(now) + timedelta(seconds=policy.limits.action_expires_s)
        for action in proposed:
            due = max(action.due_at, aware(now))
            move(action, "approve", reason=reason, now=now, by=by, due_at=due, expires_at=max(action.expires_at, until))
        move(incident, "act", reason=reason, now=now, by=by, ask="")
        attempt, job = incident.attempt, incident.training_job
        if attempt is not None and allowed(attempt, "end"):
            outcome = OUTCOME_OF_CAUSE[incident.cause]
            move(attempt, "end", reason=incident.reason, now=now, outcome=outcome, outcome_reason=incident.reason)
        if allowed(job, "fault"):
            move(job, "fault", reason=incident.summary, now=now)
