"""Ranks by node: step and age of the last progress, from each agent's newest word; and the log tails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.models import AgentReport, Attempt
from dashboard import formats

RANKS_SHOWN = 512
LINES_SHOWN = 400
# Progress older than this many seconds is told by its number, as the palette's later steps do.
AGE_STEPS = (2.0, 5.0, 15.0, 60.0)
_WORSE = re.compile(r"\b(error|traceback|exception|fatal|fail(?:ed|ure)?|xid)\b", re.IGNORECASE)
_SOFT = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)


@dataclass(frozen=True)
class RankCell:
    rank: str
    step: str
    heat: int
    text: str
    label: str


@dataclass(frozen=True)
class NodeRanks:
    node: str
    state: str
    leader: bool
    heard: datetime
    cells: list[RankCell]
    step: str


@dataclass(frozen=True)
class Ranks:
    nodes: list[NodeRanks]
    total: int
    summary: str
    cut: int


@dataclass(frozen=True)
class LogTail:
    rank: str
    lines: list[tuple[str, str]]
    cut: bool
    first_error: int | None


def ranks_of(reports: list[AgentReport]) -> Ranks:
    nodes, shown, total = [], 0, 0
    steps: list[int] = []
    slow = 0
    for report in reports:
        rows = [r for r in report.ranks if isinstance(r, dict)]
        total += len(rows)
        cells = [_cell(r) for r in rows[: max(RANKS_SHOWN - shown, 0)]]
        shown += len(cells)
        slow += sum(c.heat >= 3 for c in cells)
        here = [r["step"] for r in rows if isinstance(r.get("step"), int)]
        steps += here
        step = formats.whole(max(here)) if here else formats.NONE
        nodes.append(NodeRanks(report.node, report.state, report.leader, report.received_at, cells, step))
    return Ranks(nodes, total, _summary(total, len(reports), steps, slow), total - shown)


def _summary(total: int, nodes: int, steps: list[int], slow: int) -> str:
    if not total:
        return "No rank has reported in this attempt"
    said = f"{total} rank{'s' if total > 1 else ''} on {nodes} node{'s' if nodes > 1 else ''}"
    if steps:
        low, high = min(steps), max(steps)
        said += f", at step {formats.whole(high)}" if low == high else f", steps {formats.whole(low)} to {high:,}"
    return said + (f", {slow} without progress for over 15 s" if slow else "")


def _cell(rank: dict[str, Any]) -> RankCell:
    number, step, age = rank.get("rank"), rank.get("step"), rank.get("progress_age_s")
    known = float(age) if isinstance(age, int | float) and not isinstance(age, bool) else None
    heat = 0 if known is None else sum(known > limit for limit in AGE_STEPS)
    said = str(rank.get("phase") or rank.get("state") or "")
    if rank.get("state") == "exited":
        ended = rank.get("signal")
        said = f"ended by signal {ended}" if ended else f"ended with code {rank.get('exit_code')}"
        heat = 0 if rank.get("exit_code") == 0 and not ended else 4
    text = "ended" if rank.get("state") == "exited" else (formats.seconds(known) if heat >= 3 else "")
    where = f"step {formats.whole(step)}" if isinstance(step, int) else "no step"
    label = f"rank {number}: {said}, {where}" + ("" if known is None else f", progress {formats.seconds(known)} ago")
    return RankCell(str(number), formats.whole(step) if isinstance(step, int) else formats.NONE, heat, text, label)


def log_tails(attempt: Attempt | None) -> list[LogTail]:
    """Lowest rank first. What ranks print is hostile: control characters go, the template escapes the rest."""
    if attempt is None or not isinstance(attempt.log_tail, dict):
        return []
    order = sorted(attempt.log_tail, key=lambda r: (not str(r).isdigit(), int(r) if str(r).isdigit() else 0, str(r)))
    return [_tail(str(rank), attempt.log_tail[rank]) for rank in order]


def _tail(rank: str, raw: object) -> LogTail:
    text = raw if isinstance(raw, str) else "\n".join(map(str, raw)) if isinstance(raw, list) else str(raw)
    lines = formats.plain(text).rstrip("\n").split("\n")
    cut = lines[-LINES_SHOWN:]
    toned = [(line, "bad" if _WORSE.search(line) else "warn" if _SOFT.search(line) else "") for line in cut]
    first = next((k for k, (_, tone) in enumerate(toned) if tone == "bad"), None)
    return LogTail(rank, toned, len(lines) > len(cut), first)
