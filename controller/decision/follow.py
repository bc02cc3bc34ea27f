"""The plain course of things: what the job's own progress and the incident's actions move, without any new fault.

Each function returns (reason, changes), where changes are keyword arguments of `Proposal`.
"""

from typing import Any

from controller.decision import actions
from controller.decision.attempt import ATTEMPT
from controller.decision.attempt_facts import AttemptFact
from controller.decision.facts import IncidentFact, SlurmJobFact, SubjectFacts
from controller.decision.findings import SAVES_FAIL
from controller.decision.incident import GOES_ON
from controller.decision.launch import sign_of
from controller.decision.loss_faults import numbers_again
from controller.decision.save_faults import saved_again
from controller.decision.shortfall import shortfall
from controller.decision.training_job import TRAINING_JOB

BAD_ENDS = frozenset({"FAILED", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE", "NODE_FAIL", "BOOT_FAIL"})

PAST_ITS_ACTIONS = frozenset({"recovering", "verifying", "awaiting_operator"})

Course = tuple[str, dict[str, Any]]

ENDINGS = {
    "CANCELLED": ("cancel", "cancelled"),
    "COMPLETED": ("finish", "finished"),
    "REVOKED": ("cancel", "cancelled"),
}


def follow(subject: SubjectFacts) -> Course:
    """No incident: the training job's state follows its attempt, and Slurm's word on the end."""
    ending = _ending(subject)
    if ending is not None:
        return ending
    if subject.requeued_since and subject.live_attempt is not None:
        changes = _changes(subject, "queue", attempt_event="end", outcome="requeued")
        return "Slurm has requeued the job", changes
    attempt = subject.attempt
    if attempt is not None and attempt.first_step_seen and attempt.state in ("pending", "starting"):
        changes = _changes(subject, "train", attempt_event="step")
        return f"attempt {attempt.generation} is training", changes
    if attempt is not None and attempt.agents and attempt.state == "pending":
        return f"attempt {attempt.generation} is starting", _changes(subject, "start", attempt_event="agent")
    if _training(attempt):
        return "training", _changes(subject, "train")
    if _preempted(subject):
        return "preempted; Slurm requeues it", _changes(subject, "queue", attempt_event="end", outcome="preempted")
    if subject.slurm is not None and subject.slurm.base == "RUNNING":
        return "running in Slurm", _changes(subject, "start") if subject.state == "queued" else {}
    return "nothing changed", {}


def follow_incident(subject: SubjectFacts, now: float) -> Course:
    """A live incident: actions, then the resumed attempt, then its verification."""
    incident = subject.incident
    assert incident is not None
    if beside(subject):
        return _beside(subject, incident)
    ending = _ending(subject)
    if ending is not None and _over(subject, incident):
        reason, changes = ending
        return reason, {**changes, "incident_events": (_closing(subject, incident),)}
    if incident.state == "acting":
        return _acting(subject, incident)
    if _ended_again(subject, incident):
        assert subject.slurm is not None
        text = f"the requeued job ended {subject.slurm.base} before it spoke; a person must look"
        return text, {**_changes(subject, "stop", incident_events=("ask",)), "ask": text}
    attempt = subject.attempt
    if attempt is None or not attempt.agents or not _newer(attempt, incident):
        return _without_agents(subject, incident)
    if incident.state == "recovering" and attempt.first_step_seen:
        changes = _changes(subject, "verify", attempt_event="step", incident_events=("first_step",))
        return f"attempt {attempt.generation} made its first step", changes
    if incident.state == "recovering" and attempt.state == "pending" and attempt.agents:
        return f"attempt {attempt.generation} is starting", _changes(subject, None, attempt_event="agent")
    if incident.state == "verifying":
        return _verifying(subject, attempt)
    if incident.state == "awaiting_operator" and attempt.first_step_seen:
        changes = _changes(subject, "train", attempt_event="step", incident_events=("resolve",))
        return "the job trains again after a person's hand", changes
    return f"incident {incident.incident_id} is {incident.state}", {}


def beside(subject: SubjectFacts) -> bool:
    """The live incident only asks, and the run goes on: whatever else hits it is looked for as without an incident."""
    incident = subject.incident
    return incident is not None and incident.cause in GOES_ON and incident.state == "awaiting_operator"


def _beside(subject: SubjectFacts, incident: IncidentFact) -> Course:
    """The plain course; the incident is closed when what it asks about is over."""
    reason, changes = follow(subject)
    attempt = subject.live_attempt
    if attempt is None or subject.requeued_since or _newer(attempt, incident) or changes.get("attempt_event") == "end":
        return f"the attempt that it was about has ended: {reason}", {**changes, "incident_events": ("resolve",)}
    over = _over_by_itself(incident, attempt)
    if over is not None:
        return over, {**changes, "incident_events": ("resolve",)}
    return reason, changes


def _over_by_itself(incident: IncidentFact, attempt: AttemptFact) -> str | None:
    if incident.cause == SAVES_FAIL:
        return "a save was committed again" if saved_again(attempt) else None
    return "the loss is a number again" if numbers_again(attempt) else None


def _ended_again(subject: SubjectFacts, incident: IncidentFact) -> bool:
    """Slurm restarted the job for this incident and shows its bad end; no agent of that start ever spoke."""
    slurm, attempt = subject.slurm, subject.attempt
    if slurm is None or incident.state != "recovering" or "COMPLETING" in slurm.flags:
        return False
    if slurm.base not in BAD_ENDS and shortfall(subject) is None:
        return False
    spoke = attempt is not None and attempt.state != "ended" and _newer(attempt, incident)
    return slurm.restarts > incident.restarts and not spoke


def hit_again(subject: SubjectFacts) -> bool:
    """The live incident is past its actions and a newer attempt runs: whatever hits that one is a new incident. So is a
    later start that failed, of which no attempt ever speaks."""
    incident, attempt = subject.incident, subject.attempt
    if incident is not None and incident.state in PAST_ITS_ACTIONS:
        sign = sign_of(subject)
        if sign is not None and sign.restarts > incident.restarts:
            return True
    return (
        incident is not None
        and incident.state in PAST_ITS_ACTIONS
        and attempt is not None
        and _newer(attempt, incident)
        and attempt.state != "ended"
    )


def _changes(
    subject: SubjectFacts,
    job_event: str | None,
    attempt_event: str | None = None,
    outcome: str | None = None,
    incident_events: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Only the events that their tables allow now; a job event that would change nothing is dropped."""
    attempt = subject.attempt
    changes: dict[str, Any] = {}
    if job_event is not None and TRAINING_JOB.allows(subject.state, job_event):
        changes["job_event"] = job_event
    if attempt is not None and attempt_event is not None and ATTEMPT.allows(attempt.state, attempt_event):
        changes["attempt_event"] = attempt_event
        changes["attempt_outcome"] = outcome
    if incident_events:
        changes["incident_events"] = incident_events
    return changes


def _training(attempt: AttemptFact | None) -> bool:
    return attempt is not None and attempt.state == "running" and attempt.first_step_seen


def _ending(subject: SubjectFacts) -> Course | None:
    """Slurm says that the job is over, by its own success or by somebody's will: never requeued. A success that is
    none as far as the run's own steps tell is no end (`shortfall`)."""
    slurm = subject.slurm
    if slurm is None or slurm.base not in ENDINGS or "COMPLETING" in slurm.flags or shortfall(subject) is not None:
        return None
    event, outcome = ENDINGS[slurm.base]
    early = subject.attempt.early if subject.attempt is not None and outcome == "finished" else ""
    said = f"; the script ended it early: {early}" if early else ""
    return f"Slurm: {slurm.base}{said}", _changes(subject, event, attempt_event="end", outcome=outcome)


def _over(subject: SubjectFacts, incident: IncidentFact) -> bool:
    """Slurm's end of the job belongs to the time after the fault: cancelled ever, completed by a newer attempt."""
    slurm = subject.slurm
    assert slurm is not None
    return slurm.base != "COMPLETED" or slurm.restarts > incident.restarts or incident.state == "awaiting_operator"


def _closing(subject: SubjectFacts, incident: IncidentFact) -> str:
    if incident.state == "verifying" and _verified(subject.attempt):
        return "verified"
    if incident.state == "awaiting_operator":
        return "resolve"
    return "abandon"


def _preempted(subject: SubjectFacts) -> bool:
    return subject.slurm is not None and subject.slurm.base == "PREEMPTED"


def _newer(attempt: AttemptFact, incident: IncidentFact) -> bool:
    if incident.generation is None:
        return attempt.restart_count > incident.restarts
    return attempt.generation > incident.generation


def _acting(subject: SubjectFacts, incident: IncidentFact) -> Course:
    over = ("done", "refused", "expired", "cancelled")
    failed = [a for a in incident.actions if a.state in over[1:] and not a.optional]
    if failed:
        text = "; ".join(f"{a.kind} {a.target} {a.state}: {a.reason}" for a in failed)
        return text, {**_changes(subject, "stop", incident_events=("ask",)), "ask": text}
    if incident.actions and all(a.state in over for a in incident.actions):
        if incident.ask and all(a.kind != actions.REQUEUE for a in incident.actions):
            return incident.ask, {"incident_events": ("ask",), "ask": incident.ask}
        return "every action is confirmed", {"incident_events": ("actions_done",)}
    waiting = [f"{a.kind} {a.target}" for a in incident.actions if a.state not in over]
    return f"waiting for {', '.join(waiting) or 'actions'}", {}


def _without_agents(subject: SubjectFacts, incident: IncidentFact) -> Course:
    """A script that never speaks to us is back when Slurm runs it again; there is nothing to verify with."""
    slurm = subject.slurm
    spoke = incident.generation is not None
    if incident.state in ("recovering", "awaiting_operator") and not spoke and _running_again(slurm, incident):
        event = "recovered_unverified" if incident.state == "recovering" else "resolve"
        return "running again; nothing to verify with", _changes(subject, "train", incident_events=(event,))
    return f"incident {incident.incident_id} is {incident.state}", {}


def _running_again(slurm: SlurmJobFact | None, incident: IncidentFact) -> bool:
    return slurm is not None and slurm.base == "RUNNING" and slurm.restarts > incident.restarts


def _verifying(subject: SubjectFacts, attempt: AttemptFact) -> Course:
    if _verified(attempt):
        return "every rank's checks agree", _changes(subject, "train", incident_events=("verified",))
    missing = "replay" if attempt.replay_passed < (attempt.world_size or 1) else "first new step"
    return f"verifying: waiting for {missing}", {}


def _verified(attempt: AttemptFact | None) -> bool:
    """All ranks passed before the first step, the replayed losses agree, and a new step was made."""
    if attempt is None or attempt.world_size is None or attempt.checks_failed:
        return False
    replayed = not attempt.replay_expected or attempt.replay_passed >= attempt.world_size
    return attempt.checks_passed >= attempt.world_size and replayed and attempt.first_new_step_seen
