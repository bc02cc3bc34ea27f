"""The rows that an incident carries: evidence, exclusions, holds, recovery and actions. Called inside commit()."""

import secrets

from controller.clock import aware
from controller.decision import actions
from controller.decision.diagnosis import Verdict
from controller.decision.facts import SubjectFacts
from controller.decision.findings import Clue
from controller.decision.node_hold import NODE_HOLD
from controller.decision.policy import Policy
from controller.decision.propose import Proposal
from controller.ledger.moves import LostRace, move
from controller.models import (
    Action,
    Attempt,
    Cluster,
    Evidence,
    Exclusion,
    Incident,
    Node,
    NodeHold,
    Recovery,
    TrainingJob,
)

# More proof than anybody reads; what accuses comes first.
MOST_EVIDENCE = 200
PROOF = ("accuses", "clears")
# Behind every other action of its incident; what it tidies up ends by itself long before.
AFTERCARE_ORDER = 9
AFTERCARE_EXPIRES_S = 86400.0


def observed_already(job: TrainingJob, attempt: Attempt | None, verdict: Verdict) -> bool:
    """In observe mode the same fault is seen at every sweep; it is one incident."""
    return Incident.objects.filter(
        training_job=job,
        attempt=attempt,
        cause=verdict.cause,
        suspects=list(verdict.suspects),
        ranks=list(verdict.ranks),
        state="observed_only",
    ).exists()


def open_incident(
    cluster: Cluster,
    job: TrainingJob,
    attempt: Attempt | None,
    subject: SubjectFacts,
    proposal: Proposal,
    verdict: Verdict,
    now: float,
) -> Incident:
    """The incident with numbered evidence and its recovery row. Its `budget` is what it is charged to."""
    incident = Incident.objects.create(
        cluster=cluster,
        training_job=job,
        attempt=attempt,
        cause=verdict.cause,
        summary=verdict.summary,
        reason=verdict.reason,
        confidence=verdict.confidence,
        budget=proposal.charge,
        suspects=list(verdict.suspects),
        ranks=list(verdict.ranks),
        restarts_before=verdict.restarts,
        last_good_at=aware(verdict.last_good_at) if verdict.last_good_at is not None else None,
        fault_at=aware(verdict.fault_at) if verdict.fault_at is not None else None,
        detected_at=aware(now),
        assessment=dict(verdict.assessment),
    )
    Evidence.objects.bulk_create(_evidence(incident, verdict, now))
    Recovery.objects.create(incident=incident, training_job=job, from_attempt=attempt)
    return incident


def _evidence(incident: Incident, verdict: Verdict, now: float) -> list[Evidence]:
    kept = sorted(enumerate(verdict.clues), key=lambda pair: (pair[1].stance not in PROOF, pair[0]))[:MOST_EVIDENCE]
    return [evidence_row(incident, number, clue, now) for number, (_, clue) in enumerate(sorted(kept), start=1)]


def evidence_row(incident: Incident, number: int, clue: Clue, now: float, *, late: bool = False) -> Evidence:
    """Not saved. Texts are cut to what the columns hold."""
    return Evidence(
        incident=incident,
        number=number,
        layer=clue.layer[:32],
        source=clue.source[:255],
        subject=clue.subject[:255],
        code=clue.code[:128],
        raw=clue.raw,
        stance=clue.stance,
        origin=clue.origin,
        node=clue.node[:255],
        rank=clue.rank,
        count=clue.count,
        last_at=aware(clue.last_at) if clue.last_at is not None else None,
        ref=clue.ref[:64],
        late=late,
        observed_at=aware(clue.at),
        received_at=aware(clue.received_at if clue.received_at is not None else now),
    )


def plan_actions(incident: Incident, proposal: Proposal, policy: Policy, now: float, *, waits: bool) -> None:
    """One Action row for each admitted plan, with the hold and exclusion rows that belong to it. `waits`: for a
    person's approval; telling people never waits."""
    for plan in proposal.plans:
        ready = not waits or plan.kind == actions.NOTIFY
        action = Action.objects.create(
            incident=incident,
            key=f"incident:{incident.pk}:{plan.kind}:{plan.target}",
            kind=plan.kind,
            target=plan.target,
            order=plan.order,
            optional=plan.optional,
            reason=plan.reason,
            params=dict(plan.params),
            created_at=aware(now),
            due_at=aware(now + plan.delay_s),
            expires_at=aware(now + plan.delay_s + policy.limits.action_expires_s),
        )
        if ready:
            move(action, "approve", reason="admitted", now=now)
        if plan.kind == actions.HOLD_NODE:
            _hold(incident, plan, now)
        if plan.kind == actions.REQUEUE:
            _exclusions(incident, plan, policy, now)


def _node(cluster: Cluster, name: str) -> Node:
    try:
        return Node.objects.get(cluster=cluster, name=name)
    except Node.DoesNotExist:
        raise LostRace(f"Slurm's view has no node {name} any more") from None


def _hold(incident: Incident, plan: actions.ActionPlan, now: float) -> None:
    """A node that is held already keeps that hold: one live hold a node."""
    node = _node(incident.cluster, plan.target)
    if NodeHold.objects.filter(node=node, state__in=NODE_HOLD.live).exists():
        return
    NodeHold.objects.create(
        node=node,
        incident=incident,
        machine=node.machine,
        rebooted_at=node.rebooted_at,
        token=secrets.token_hex(6),
        reason=incident.summary,
        created_at=aware(now),
        state_at=aware(now),
    )


def _exclusions(incident: Incident, plan: actions.ActionPlan, policy: Policy, now: float) -> None:
    for name in plan.params["exclude"]:
        node = _node(incident.cluster, name)
        Exclusion.objects.create(
            training_job=incident.training_job,
            node=node,
            machine=node.machine,
            incident=incident,
            reason=incident.summary,
            created_at=aware(now),
            expires_at=aware(now + policy.limits.exclusion_s),
        )


def plan_aftercare(incident: Incident, kind: str, target: str, *, due: float, now: float) -> None:
    """One action that tidies up after another, due later; once for each target."""
    key = f"incident:{incident.pk}:{kind}:{target}"
    action, made = Action.objects.get_or_create(
        key=key,
        defaults={
            "incident": incident,
            "kind": kind,
            "target": target,
            "order": AFTERCARE_ORDER,
            "optional": True,
            "created_at": aware(now),
            "due_at": aware(due),
            "expires_at": aware(now + AFTERCARE_EXPIRES_S),
        },
    )
    if made:
        move(action, "approve", reason="it tidies up what is about to be made", now=now)


def cancel_waiting_actions(incident: Incident, reason: str, now: float) -> None:
    """Those that nobody has begun. A begun one finds out by itself; telling people goes on."""
    waiting = Action.objects.filter(incident=incident, state__in=("proposed", "ready"), stage="")
    for action in waiting.exclude(kind__in=actions.ALWAYS):
        if action.params.get("late") is True:
            continue  # the node is bad whatever becomes of the job
        move(action, "cancel", reason=reason, now=now, outcome=reason)
        if action.kind == actions.HOLD_NODE:
            release_unwritten_hold(incident, action.target, reason, now)


def release_unwritten_hold(incident: Incident, node: str, reason: str, now: float) -> None:
    """The hold row of an action that wrote nothing to Slurm: there is nothing to hold."""
    holds = NodeHold.objects.filter(incident=incident, node__name=node, state__in=NODE_HOLD.live, slurm_reason="")
    for hold in holds.filter(adopted=False):
        move(hold, "release", reason=reason, now=now)
