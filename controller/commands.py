"""What people ask for: every change by a person's hand goes through here, each with an AuditEntry in its transaction.

Nothing here talks to Slurm: what Slurm must do becomes an action for the executor. Callers check permissions.
"""

from collections.abc import Callable

from django.db import transaction

from controller.clock import aware
from controller.decision import actions
from controller.decision.incident import INCIDENT
from controller.decision.machine import RefusedTransition
from controller.decision.node_hold import NODE_HOLD
from controller.decision.policy import MODES, Policy
from controller.errors import RelumeError
from controller.ledger import LostRace, move
from controller.ledger.commit import approve as commit_approval
from controller.ledger.records import cancel_waiting_actions
from controller.models import Action, AuditEntry, Cluster, Incident, NodeHold, TrainingJob
from controller.remediation.safety import facts_moved


class CommandRefused(RelumeError):
    """What was asked for is not possible now; the text says why, in words for a page."""


def _audit(who: str, what: str, target: str, reason: str, now: float, **data: object) -> None:
    AuditEntry.objects.create(at=aware(now), who=who, what=what, target=target, reason=reason, data=data)


def _with_reason(reason: str) -> str:
    if not reason.strip():
        raise CommandRefused("say why: a reason is needed")
    return reason.strip()


# --- the cluster ----------------------------------------------------------------------------------------------


def pause(cluster: Cluster, *, who: str, reason: str, now: float) -> None:
    """Nothing new is begun until `resume`; what is begun is carried through."""
    reason = _with_reason(reason)
    with transaction.atomic():
        Cluster.objects.filter(pk=cluster.pk).update(paused_reason=reason, paused_by=who)
        _audit(who, "pause", cluster.name, reason, now)


def resume(cluster: Cluster, *, who: str, reason: str, now: float) -> None:
    with transaction.atomic():
        Cluster.objects.filter(pk=cluster.pk).update(paused_reason="", paused_by="")
        _audit(who, "resume", cluster.name, reason, now)


def set_mode(cluster: Cluster, mode: str, *, who: str, reason: str, now: float) -> None:
    """`mode` empty: the policy's again. Also the way out of a fall to observe."""
    if mode not in ("", *MODES):
        raise CommandRefused(f"{mode!r} is none of {', '.join(MODES)}")
    reason = _with_reason(reason)
    with transaction.atomic():
        before = Cluster.objects.get(pk=cluster.pk).mode
        Cluster.objects.filter(pk=cluster.pk).update(mode=mode, mode_reason=f"{who}: {reason}")
        _audit(who, "set_mode", cluster.name, reason, now, before=before, after=mode)


# --- training jobs --------------------------------------------------------------------------------------------


def save_now(job: TrainingJob, *, who: str, now: float) -> None:
    """A checkpoint at the next step that all ranks can agree on. Asking again before it is there changes nothing."""
    if job.state not in ("training", "verifying"):
        raise CommandRefused(f"the training job is {job.state}: there is no step to save at")
    with transaction.atomic():
        TrainingJob.objects.filter(pk=job.pk).update(save_asked_at=aware(now))
        _audit(who, "save_now", job.run_id, "", now)


# --- incidents ------------------------------------------------------------------------------------------------


def approve(incident: Incident, *, who: str, reason: str, policy: Policy, now: float) -> None:
    """The proposed actions may be carried out. Refused when the agents that were taken for dead speak again."""
    moved = facts_moved(incident)
    if moved is not None:
        raise CommandRefused(f"{moved}; dismiss the incident instead")
    with transaction.atomic():
        _refusing(lambda: commit_approval(incident, by=who, reason=reason, policy=policy, now=now))
        _audit(who, "approve", f"incident {incident.pk}", reason, now)


def dismiss(incident: Incident, *, who: str, reason: str, now: float) -> None:
    """The incident is over by a person's word; what waits is cancelled, the job's own course goes on."""
    reason = _with_reason(reason)
    with transaction.atomic():
        if incident.state not in INCIDENT.live:
            raise CommandRefused(f"incident {incident.pk} is {incident.state} already")
        if Action.objects.filter(incident=incident, state__in=("ready", "claimed")).exclude(stage="").exists():
            raise CommandRefused("an action has begun in Slurm; it must end first")
        event = "resolve" if incident.state == "awaiting_operator" else "abandon"
        _refusing(lambda: move(incident, event, reason=reason, now=now, by=who))
        cancel_waiting_actions(incident, f"dismissed by {who}: {reason}", now)
        _audit(who, "dismiss", f"incident {incident.pk}", reason, now)


def _refusing(change: Callable[[], object]) -> None:
    try:
        change()
    except (LostRace, RefusedTransition) as error:
        raise CommandRefused(str(error)) from error


# --- nodes ----------------------------------------------------------------------------------------------------


def release_hold(hold: NodeHold, *, who: str, reason: str, policy: Policy, now: float) -> Action | None:
    """Returns the node to service: the executor clears our own drain and nobody else's. None when nothing of ours
    stands in Slurm: then only our record ends."""
    reason = _with_reason(reason)
    with transaction.atomic():
        if hold.state not in NODE_HOLD.live:
            raise CommandRefused(f"{hold.node.name} is {hold.state} already")
        _audit(who, "release_hold", hold.node.name, reason, now)
        if hold.incident is None or hold.adopted or not hold.slurm_reason:
            _refusing(lambda: move(hold, "release", reason=reason, now=now, by=who))
            return None
        action, created = Action.objects.get_or_create(
            key=f"hold:{hold.pk}:{actions.RELEASE_NODE}:{_asked_before(hold)}",
            defaults={
                "incident": hold.incident,
                "kind": actions.RELEASE_NODE,
                "target": hold.node.name,
                "order": 9,
                "optional": True,
                "reason": reason,
                "params": {"who": who, "reason": reason},
                "created_at": aware(now),
                "due_at": aware(now),
                "expires_at": aware(now + policy.limits.action_expires_s),
            },
        )
        if created:
            move(action, "approve", reason=reason, now=now, by=who)
        return action


def _asked_before(hold: NodeHold) -> int:
    """A refused or expired release may be asked for again; one that waits may not."""
    earlier = Action.objects.filter(key__startswith=f"hold:{hold.pk}:{actions.RELEASE_NODE}:")
    return earlier.filter(state__in=("refused", "expired", "cancelled")).count()
