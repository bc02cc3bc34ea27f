"""The answer of `diagnose` as JSON: the keys of docs/formats.md, section 10, always all of them, in that order."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from controller.decision.assessment import Assessment, NodeView
from controller.decision.evidence import Case, Evidence

PROOF, CASCADE, CLEARS, CONTEXT = "proof", "cascade", "clears", "context"
# What carries the verdict is always told; of the rest as much as anybody reads.
OTHERS_TOLD = 2000


def answer(case: Case, found: Assessment) -> dict[str, Any]:
    told, left_out = told_evidence(case, found)
    notes = [*found.notes, *([f"{left_out:,} more signs are not listed here"] if left_out else [])]
    return {
        "verdict": found.verdict,
        "confidence": found.confidence,
        "suspect_nodes": list(found.suspect_nodes),
        "suspect_ranks": list(found.suspect_ranks),
        "suspect_rank": found.suspect_ranks[0] if found.suspect_ranks else None,
        "suspect_gpu": found.suspect_gpu or None,
        "xid": found.xid,
        "drain": list(found.drain),
        "exclude": list(found.exclude),
        "requeue": found.requeue,
        "requeue_delay_s": found.requeue_delay_s,
        "requeue_limit": found.requeue_limit,
        "budget": found.budget,
        "why": found.why,
        "drain_mode": drain_mode(found),
        "withheld": list(found.withheld),
        "node_actions": dict(sorted(found.node_actions.items())),
        "follow_up": list(found.follow_up),
        "notes": notes,
        "per_node": {name: _node(view) for name, view in sorted(found.per_node.items())},
        "evidence": [_evidence(item, role) for item, role in told],
    }


def drain_mode(found: Assessment) -> str | None:
    """What is to be done with the nodes besides, as one sentence."""
    return "; ".join(node_action(node, text) for node, text in sorted(found.node_actions.items())) or None


def node_action(node: str, text: str) -> str:
    """The action, with the node's name where the words do not have it."""
    return text if node in text else f"{node}: {text}"


def roles(found: Assessment) -> dict[str, str]:
    """By evidence id; whatever is not in it is context."""
    ordered = ((CASCADE, found.cascade), (CLEARS, found.clears), (PROOF, found.proof))
    return {name: role for role, names in ordered for name in names}


def told_evidence(case: Case, found: Assessment) -> tuple[list[tuple[Evidence, str]], int]:
    """In the order of reading, with its role; and how many consequences and other signs are left out."""
    role_of = roles(found)
    told, counted = [], Counter[str]()
    for item in case.evidence:
        role = role_of.get(item.id, CONTEXT)
        counted[role] += 1
        if role in (PROOF, CLEARS) or counted[role] <= OTHERS_TOLD:
            told.append((item, role))
    return told, len(case.evidence) - len(told)


def _node(view: NodeView) -> dict[str, Any]:
    return {
        "verdict": view.verdict,
        "drain": view.drain,
        "exclude": view.exclude,
        "xid": view.xid,
        "why": view.why,
    }


def _evidence(item: Evidence, role: str) -> Mapping[str, Any]:
    return {
        "id": item.id,
        "at": item.at,
        "layer": item.layer,
        "source": item.source,
        "origin": item.origin,
        "node": item.node,
        "rank": item.rank,
        "code": item.code,
        "raw": item.raw,
        "count": item.count,
        "role": role,
    }
