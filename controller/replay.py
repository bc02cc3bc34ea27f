"""Today's code and policy on the stored facts of an old incident: what would be said and done now, field by field.

Two results are compared that were made alike: what the rows of the incident say was decided then, and what `propose`
and `admit` make of the same facts now. Facts stored by an older version take the defaults of what it did not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controller.decision.actions import HOLD_NODE, REQUEUE
from controller.decision.admit import Admission, admit
from controller.decision.codec import cluster_from_json, subject_from_json
from controller.decision.findings import Clue
from controller.decision.policy import Policy
from controller.decision.propose import propose
from controller.models import Decision, Evidence, Incident
from controller.revision import code_version

FIELDS = (
    *("outcome", "cause", "suspects", "ranks", "hold", "exclude", "requeue", "budget", "confidence", "summary"),
    *("reason", "proof"),
)


class NotReplayable(Exception):
    """Why this incident cannot be decided again."""


@dataclass(frozen=True)
class Replay:
    """`then` and `now` have the keys of FIELDS; of a decision that opens no incident all but `outcome` and `reason`
    are empty."""

    incident: int
    decision: int
    decided_at: float
    versions: dict[str, dict[str, str]]
    then: dict[str, Any]
    now: dict[str, Any]

    @property
    def differences(self) -> list[str]:
        return [name for name in FIELDS if self.then[name] != self.now[name]]

    def to_json(self) -> dict[str, Any]:
        return {
            "incident": self.incident,
            "decision": self.decision,
            "decided_at": self.decided_at,
            "same": not self.differences,
            "differences": self.differences,
            "versions": self.versions,
            "then": self.then,
            "now": self.now,
        }


def replay(number: int, policy: Policy) -> Replay:
    """The decision that opened the incident, again. Raises NotReplayable."""
    incident = Incident.objects.filter(pk=number).first()
    if incident is None:
        raise NotReplayable(f"there is no incident {number}")
    decision = incident.decisions.order_by("pk").first()
    if decision is None:
        raise NotReplayable(f"incident {number} has no decision: nothing says which facts it was opened on")
    again = _again(decision, policy)
    return Replay(
        incident=incident.pk,
        decision=decision.pk,
        decided_at=decision.at.timestamp(),
        versions={
            "then": {"code": decision.code_version, "policy": decision.policy_digest},
            "now": {"code": code_version(), "policy": policy.digest()},
        },
        then=_then(incident, decision),
        now=_now(again),
    )


def _again(decision: Decision, policy: Policy) -> Admission:
    at = decision.at.timestamp()
    try:
        subject, cluster = subject_from_json(decision.facts), cluster_from_json(decision.cluster_facts)
    except (TypeError, ValueError, KeyError) as error:
        raise NotReplayable(f"the facts of decision {decision.pk} cannot be read: {error}") from error
    return admit([propose(subject, at, policy)], cluster, at, policy)[0]


def _then(incident: Incident, decision: Decision) -> dict[str, Any]:
    """As it was opened: evidence that came later, and what a person asked for, is no part of it."""
    actions = list(incident.actions.filter(created_at__lte=decision.at))
    requeues = [action for action in actions if action.kind == REQUEUE]
    return {
        "outcome": decision.outcome,
        "cause": incident.cause,
        "suspects": sorted(incident.suspects),
        "ranks": sorted(incident.ranks),
        "hold": sorted(action.target for action in actions if action.kind == HOLD_NODE),
        "exclude": sorted({name for action in requeues for name in action.params.get("exclude", ())}),
        "requeue": bool(requeues),
        "budget": incident.budget,
        "confidence": round(incident.confidence, 6),
        "summary": incident.summary,
        "reason": decision.reason,
        "proof": _lines(incident.evidence.filter(late=False)),
    }


def _now(admission: Admission) -> dict[str, Any]:
    proposal, verdict = admission.proposal, admission.proposal.verdict
    requeues = [plan for plan in proposal.plans if plan.kind == REQUEUE]
    return {
        "outcome": admission.outcome,
        "cause": verdict.cause if verdict is not None else "",
        "suspects": sorted(verdict.suspects) if verdict is not None else [],
        "ranks": sorted(verdict.ranks) if verdict is not None else [],
        "hold": sorted(plan.target for plan in proposal.plans if plan.kind == HOLD_NODE),
        "exclude": sorted({name for plan in requeues for name in plan.params.get("exclude", ())}),
        "requeue": bool(requeues),
        "budget": proposal.charge if verdict is not None else "",
        "confidence": round(verdict.confidence, 6) if verdict is not None else 0.0,
        "summary": verdict.summary if verdict is not None else "",
        "reason": proposal.reason,
        "proof": _lines(verdict.clues) if verdict is not None else [],
    }


def _lines(pieces: Iterable[Clue | Evidence]) -> list[str]:
    """In no order of arrival: the same evidence is the same proof."""
    return sorted(f"{piece.stance} {piece.code} {piece.subject}: {piece.raw}" for piece in pieces)
