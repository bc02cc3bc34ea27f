"""Signs that come after their incident was opened: put to its evidence, and where they are hard, the node is held.

Evidence is never edited: late pieces get the next numbers and say that they are late.
"""

from collections.abc import Iterable, Sequence

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Max, Q

from controller.clock import aware
from controller.decision import actions
from controller.decision.actions import ActionPlan
from controller.decision.admit import admit
from controller.decision.diagnosis import REQUEUE, Verdict
from controller.decision.evidence import Evidence as Piece
from controller.decision.facts import ClusterFacts, SubjectFacts
from controller.decision.findings import NODE_SIGN, clue_of
from controller.decision.hard_signs import late_signs, meaning_of
from controller.decision.machine import RefusedTransition
from controller.decision.meanings import Knowledge
from controller.decision.policy import Policy
from controller.decision.propose import Proposal
from controller.ledger import records
from controller.ledger.moves import LostRace
from controller.models import Cluster, Evidence, Incident, NodeSensor, Sign
from controller.snapshot.signs import evidence

log = structlog.get_logger()

WITHIN_S = 600.0
MOST_AT_ONCE = 200
STANCES = {"hard": "accuses", "strong": "accuses", "weak": "soft", "clears": "clears", "cascade": "cascade"}


def append(cluster: Cluster, now: float, knowledge: Knowledge) -> None:
    """For incidents of the last ten minutes: signs of their attempt, or of sensors on its nodes, that were observed
    before the incident's end and came after it was opened."""
    since = aware(now - WITHIN_S)
    if not Sign.objects.filter(cluster=cluster, received_at__gt=since).exists():
        return
    for incident in Incident.objects.filter(cluster=cluster, detected_at__gt=since).select_related("attempt"):
        signs = list(_late(incident, now))
        if signs:
            _append(incident, signs, knowledge, now)


def _late(incident: Incident, now: float) -> Iterable[Sign]:
    nodes = incident.attempt.nodes if incident.attempt is not None else incident.suspects
    about = Q(origin="sensor", node__in=nodes, observed_at__gt=_begin(incident))
    if incident.attempt_id is not None:
        about |= Q(attempt=incident.attempt_id)
    came = Sign.objects.filter(about, cluster=incident.cluster_id, received_at__gt=incident.detected_at)
    came = came.filter(observed_at__lte=incident.ended_at or aware(now))
    known = Evidence.objects.filter(incident=incident).exclude(ref="").values_list("ref", flat=True)
    seen = set(known)
    room = records.MOST_EVIDENCE - len(seen)
    fresh = [
        sign for sign in came.order_by("order", "observed_at")[: MOST_AT_ONCE + len(seen)] if _ref(sign) not in seen
    ]
    return fresh[: max(room, 0)]


def _begin(incident: Incident) -> object:
    fault = incident.fault_at or incident.detected_at
    return aware(fault.timestamp() - 60.0)


def _ref(sign: Sign) -> str:
    return f"sign:{sign.pk}"


def _append(incident: Incident, signs: Sequence[Sign], knowledge: Knowledge, now: float) -> None:
    """Another sweep that was faster has written the same numbers: then nothing is to do."""
    sensors = {
        s.node: s for s in NodeSensor.objects.filter(cluster=incident.cluster_id, node__in={s.node for s in signs})
    }
    last = Evidence.objects.filter(incident=incident).aggregate(last=Max("number"))["last"] or 0
    pieces = [evidence(sign, sensors.get(sign.node)) for sign in sorted(signs, key=lambda s: (s.observed_at, s.pk))]
    rows = [
        records.evidence_row(incident, number, clue_of(piece, _stance(piece, knowledge), now), now, late=True)
        for number, piece in enumerate(pieces, start=last + 1)
    ]
    try:
        with transaction.atomic():
            Evidence.objects.bulk_create(rows)
    except IntegrityError:
        log.info("late_evidence_raced", incident=incident.pk)


def _stance(piece: Piece, knowledge: Knowledge) -> str:
    row = knowledge.of(piece.code)
    return "context" if row is None else STANCES.get(row.weight, "context")


# --- holds --------------------------------------------------------------------------------------------------------


def hold(subjects: Iterable[SubjectFacts], facts: ClusterFacts, policy: Policy, now: float) -> list[str]:
    """Names of the nodes whose hold was planned. Spends the same ceilings as every other hold; in `approve` mode
    nothing is held by itself, and what was said stands with the incident."""
    found = [(subject, pieces) for subject in subjects if subject.enrolled and (pieces := late_signs(subject, policy))]
    proposals = [_proposal(subject, pieces, policy) for subject, pieces in found]
    planned = []
    for (subject, _), admission in zip(found, admit(proposals, facts, now, policy), strict=True):
        if admission.outcome == "act" and subject.last_fault is not None and admission.proposal.plans:
            planned += _plan(subject.last_fault.incident_id, admission.proposal, policy, now)
    return planned


def _proposal(subject: SubjectFacts, pieces: Sequence[Piece], policy: Policy) -> Proposal:
    names = sorted({piece.node for piece in pieces if piece.node is not None})
    why = {piece.node: f"{piece.node}: {meaning_of(piece, policy)}" for piece in reversed(pieces)}
    summary = f"Hardware fault, seen late: {', '.join(names)}"
    plans = tuple(_hold_plan(subject, name, why[name]) for name in names)
    reason = "; ".join(why[name] for name in names)
    verdict = Verdict(NODE_SIGN, summary, reason, 0.9, REQUEUE, "none", suspects=tuple(names), hold=tuple(names))
    return Proposal(subject.run_id, reason, verdict=verdict, plans=plans)


def _hold_plan(subject: SubjectFacts, name: str, why: str) -> ActionPlan:
    adopt = subject.nodes[name].drained_by_somebody
    params = {"adopt": adopt, "down": False, "late": True}
    return ActionPlan(actions.HOLD_NODE, name, 1, params, optional=True, reason=why)


def _plan(incident_id: int, proposal: Proposal, policy: Policy, now: float) -> list[str]:
    """On the incident that the signs belong to; a node that it had a hold planned for before keeps that one."""
    try:
        with transaction.atomic():
            incident = Incident.objects.get(pk=incident_id)
            records.plan_actions(incident, proposal, policy, now, waits=False)
    except (IntegrityError, LostRace, RefusedTransition) as error:
        log.info("late_hold_raced", incident=incident_id, error=str(error))
        return []
    names = [plan.target for plan in proposal.plans]
    log.info("late_hold", incident=incident_id, nodes=names)
    return names


def forget_old(cluster: Cluster, now: float, policy: Policy) -> None:
    """Evidence of incidents is a copy, and stays."""
    Sign.objects.filter(cluster=cluster, received_at__lt=aware(now - policy.limits.sign_memory_s)).delete()
