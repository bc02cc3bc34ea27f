"""What is asked again right before an action begins: old decisions are not acted upon."""

from datetime import datetime, timedelta

from controller.decision import actions, findings
from controller.decision.training_job import TRAINING_JOB
from controller.models import Action, AgentReport, Cluster, Incident
from controller.remediation.results import Refuse, Result, Wait

# Causes that rest on the silence of an agent: its voice takes them back.
SILENCE = frozenset({findings.NODE_LOST, findings.MANY_NODES})
PAUSE_LOOK_S = 5.0


def objection(action: Action, default_mode: str) -> Result | None:
    """Why an action that has written nothing yet must not begin (Refuse) or not now (Wait). Telling people, and giving
    back what we took, have no objection but their expiry, which the executor checks."""
    if action.kind in actions.ALWAYS:
        return None
    incident = Incident.objects.select_related("cluster", "training_job").get(pk=action.incident_id)
    if action.kind == actions.RELEASE_NODE:
        return _switched_off(incident.cluster, default_mode)
    late = action.params.get("late") is True  # a node that proved bad after its incident had acted
    if incident.state != "acting" and not late:
        return Refuse(f"superseded: the incident is {incident.state}")
    if incident.training_job.state in TRAINING_JOB.final and not late:
        return Refuse(f"the training job is {incident.training_job.state}")
    off = _switched_off(incident.cluster, default_mode)
    if off is not None:
        return off
    moved = facts_moved(incident)
    return Refuse(moved) if moved is not None else None


def _switched_off(cluster: Cluster, default_mode: str) -> Result | None:
    if cluster.paused_reason:
        return Wait(PAUSE_LOOK_S, f"paused: {cluster.paused_reason}")
    if (cluster.mode or default_mode) == "observe":
        return Wait(PAUSE_LOOK_S, f"observe mode {cluster.mode_reason}".strip())
    return None


def facts_moved(incident: Incident) -> str | None:
    """The agents that were taken for dead speak again: a living attempt is not requeued. A message that was under way
    when its host died is no sign of life, however late it comes."""
    if incident.cause not in SILENCE or incident.attempt_id is None:
        return None
    heard = AgentReport.objects.filter(
        attempt=incident.attempt_id, node__in=incident.suspects, received_at__gt=incident.detected_at
    )
    names = sorted(report.node for report in heard if _written_at(report) > incident.detected_at)
    return f"the agent on {', '.join(names)} speaks again" if names else None


def _written_at(report: AgentReport) -> datetime:
    """By its own clock, corrected to ours."""
    return report.sent_at + timedelta(seconds=report.clock_offset_s)


def may_run_after(action: Action, earlier: list[Action]) -> bool | str:
    """True: its turn. False: not yet. A text: never, because one before it was not done."""
    if any(other.state in ("ready", "claimed") for other in earlier):
        return False
    if action.kind in (*actions.ALWAYS, actions.RELEASE_NODE):
        return True  # what waits for approval is what people are told about
    if any(other.state == "proposed" for other in earlier):
        return False
    failed = [other for other in earlier if other.state != "done" and not other.optional]
    return f"{failed[0].kind} {failed[0].target} was {failed[0].state}" if failed else True
