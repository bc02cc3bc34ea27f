"""Nodes in Slurm's own spelling, with who holds them and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controller.decision import silence
from controller.decision.hardware import WORDS
from controller.decision.node_hold import NODE_HOLD
from controller.models import Node, NodeHold
from controller.queries.nodes import NodeDetail, NodeRow
from controller.queries.tenants import Tenant
from dashboard import words
from dashboard.presenters.tenants import waits_words
from dashboard.words import Word

BAD_FLAGS = {"NOT_RESPONDING", "FAIL", "INVALID_REG"}
HOLD_FLAGS = {"DRAIN"}


@dataclass(frozen=True)
class NodeLine:
    """`waits`: what the drain waits for. `quiet`: why the node need not speak now."""

    row: NodeRow
    flags: list[tuple[str, str]]
    word: Word | None
    since: datetime | None
    why: str
    incident: int | None
    waits: str
    quiet: str

    @property
    def tenants(self) -> list[Tenant]:
        return self.row.tenants


@dataclass(frozen=True)
class HoldLine:
    """`open`: the reader may open its incident. `notes`: what a person must know before ending it."""

    hold: NodeHold
    word: Word
    open: bool
    notes: list[str]


def node_line(row: NodeRow, visible: set[int]) -> NodeLine:
    """`visible`: ids of the incidents that this reader may open."""
    node, hold = row.node, row.hold
    flags = [(flag, "bad" if flag in BAD_FLAGS else "hold" if flag in HOLD_FLAGS else "") for flag in node.flags]
    out = bool(HOLD_FLAGS & set(node.flags))
    waits = waits_words(node, row.tenants) if out and row.shown else ""
    quiet = silence.of_node(node.flags, reserved_for_others=True) or ""
    if hold is not None and not hold.adopted:
        incident = hold.incident_id if hold.incident_id in visible else None
        word = words.of(words.HOLD, hold.state)
        return NodeLine(row, flags, word, hold.created_at, hold.reason, incident, waits, quiet)
    if hold is not None or out:
        by = f" by {node.reason_user}" if node.reason_user else ""
        why = f"“{node.reason}”{by}" if node.reason else by.strip()
        return NodeLine(row, flags, words.NOT_OURS, node.reason_at, why, None, waits, quiet)
    return NodeLine(row, flags, None, None, node.reason, None, waits, quiet)


def hold_lines(detail: NodeDetail, line: NodeLine, visible: set[int]) -> list[HoldLine]:
    return [
        HoldLine(hold, _hold_word(hold), hold.incident_id in visible, _notes(hold, detail.row.node, line.waits))
        for hold in detail.holds
    ]


def _hold_word(hold: NodeHold) -> Word:
    return words.NOT_OURS if hold.adopted and hold.state != "returned" else words.of(words.HOLD, hold.state)


def _notes(hold: NodeHold, node: Node, waits: str) -> list[str]:
    notes = []
    if hold.machine is not None and node.machine_id is not None and hold.machine_id != node.machine_id:
        notes.append(f"made for another machine: {hold.machine}, and {node.machine} stands here now")
    if hold.state not in NODE_HOLD.live:
        return notes
    if hold.state == "draining" and waits:
        notes.append(waits)
    if hold.state == "returned":
        notes.append(
            "Slurm shows it in service, but nobody has said that it is well: release it here or drain it again"
        )
    if hold.sticky:
        notes.append("drained three times in 24 hours: only a person clears it")
    return notes


def machine_facts(node: Node) -> list[tuple[str, str]]:
    """(kind, values): what the machine is recognised by."""
    if node.machine is None:
        return []
    known = node.machine.facts
    return [(WORDS[kind][:1].upper() + WORDS[kind][1:], ", ".join(known[kind])) for kind in WORDS if known.get(kind)]
