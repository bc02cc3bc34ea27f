"""Nodes in Slurm's own spelling, with who holds them and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controller.models import NodeHold, TrainingJob
from controller.queries.nodes import NodeRow
from dashboard import words
from dashboard.words import Word

BAD_FLAGS = {"NOT_RESPONDING", "FAIL", "INVALID_REG"}
HOLD_FLAGS = {"DRAIN"}


@dataclass(frozen=True)
class NodeLine:
    row: NodeRow
    flags: list[tuple[str, str]]
    word: Word | None
    since: datetime | None
    why: str
    incident: int | None
    jobs: list[tuple[str, TrainingJob | None]]


def node_line(row: NodeRow, visible: set[int]) -> NodeLine:
    """`visible`: ids of the incidents that this reader may open."""
    node, hold = row.node, row.hold
    flags = [(flag, "bad" if flag in BAD_FLAGS else "hold" if flag in HOLD_FLAGS else "") for flag in node.flags]
    jobs: list[tuple[str, TrainingJob | None]] = [
        (j.slurm_job_id, j) if isinstance(j, TrainingJob) else (j, None) for j in row.jobs
    ]
    if hold is not None and not hold.adopted:
        incident = hold.incident_id if hold.incident_id in visible else None
        return NodeLine(row, flags, words.of(words.HOLD, hold.state), hold.created_at, hold.reason, incident, jobs)
    if hold is not None or HOLD_FLAGS & set(node.flags):
        by = f" by {node.reason_user}" if node.reason_user else ""
        why = f"“{node.reason}”{by}" if node.reason else by.strip()
        return NodeLine(row, flags, words.NOT_OURS, node.reason_at, why, None, jobs)
    return NodeLine(row, flags, None, None, node.reason, None, jobs)


def hold_word(hold: NodeHold) -> Word:
    return words.NOT_OURS if hold.adopted else words.of(words.HOLD, hold.state)
