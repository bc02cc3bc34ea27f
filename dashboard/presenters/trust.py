"""What diagnosis advised besides holding and requeueing, and what it kept back because only the job itself said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.slurm.hostlist import fold


@dataclass(frozen=True)
class Advice:
    """`withheld`: the sentence about nodes that are not drained on the job's own word; "" for none. `lines`: what else
    a person should do or check, `(label, text)`."""

    withheld: str = ""
    lines: list[tuple[str, str]] = field(default_factory=list)


def advice_of(assessment: Mapping[str, Any]) -> Advice:
    """From a stored assessment; what is not as it should be is left out."""
    nodes = _texts(assessment.get("withheld"))
    actions = assessment.get("node_actions")
    lines = [(str(node), str(text)) for node, text in actions.items()] if isinstance(actions, Mapping) else []
    lines += [("Check", text) for text in _texts(assessment.get("follow_up"))]
    lines += [("Note", text) for text in _texts(assessment.get("notes"))]
    return Advice(_withheld(nodes) if nodes else "", lines)


def _withheld(nodes: list[str]) -> str:
    it, it_is = ("it", "It is") if len(nodes) == 1 else ("them", "They are")
    return (
        f"Not drained: {_folded(nodes)}. Only the job’s own processes accuse {it}, and the word of one job may not "
        f"hold a node (policy: trust_job_evidence). {it_is} kept from this job until the node’s sensor, Slurm or "
        "another job says the same."
    )


def _folded(nodes: list[str]) -> str:
    try:
        return fold(nodes)
    except ValueError:
        return ", ".join(nodes)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
