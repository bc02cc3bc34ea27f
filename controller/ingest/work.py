"""What each rank's own work took in its last steps: small, kept with its agent's report, for the comparison of equals.

Kept as a text that the poll hands on unread: it is taken apart only when somebody asks who is slow.
"""

import json
from collections.abc import Mapping
from typing import Any

from controller.decision.straggler_evidence import MOST_RANKS_OF_A_NODE, STEPS, Window, read_windows, write_windows
from controller.ingest.changes import Changes
from controller.ingest.ranges import INT32, whole

METRIC = "compute_s"
ROLE_CHARS = 64
SHORTEST_S, LONGEST_S = 1e-6, 1e9  # a ratio of two of them is a number that every column holds


def note(changes: Changes, rank: int, body: Mapping[str, Any]) -> None:
    """What one metrics record says of it. Its values are checked: numbers, or words for those that are none."""
    if body["name"] != METRIC:
        return
    points = zip(body["steps"], body["values"], strict=True)
    changes.work.setdefault(rank, []).extend(
        (step, float(value))
        for step, value in points
        if not isinstance(value, str) and SHORTEST_S <= value <= LONGEST_S
    )


def note_role(changes: Changes, rank: Any, role: Any) -> None:
    """A rank's role by its `run_facts`; what is no text says nothing. It is shown to people as part of a line."""
    number = whole(rank, INT32)
    if number is None or not isinstance(role, str):
        return
    shown = "".join(c if c.isprintable() else " " for c in role[: 4 * ROLE_CHARS]).strip()
    if shown:
        changes.roles[number] = shown[:ROLE_CHARS]


def merged(text: str, changes: Changes) -> str:
    """The windows with what one message adds; JSON, the last STEPS steps of each rank by their numbers."""
    windows = read_windows(text)
    for rank in sorted({*changes.work, *changes.roles}):
        known = windows.get(rank)
        if known is None and len(windows) >= MOST_RANKS_OF_A_NODE:
            continue
        known = known or Window()
        role = changes.roles.get(rank, known.role)
        windows[rank] = Window(role, _with(known.seconds, changes.work.get(rank, [])))
    return json.dumps(write_windows(windows), separators=(",", ":"))


def _with(known: Mapping[int, float], points: list[tuple[int, float]]) -> dict[int, float]:
    """A step that is told again takes nothing away: the first word stays."""
    told = {step: float(f"{seconds:.4g}") for step, seconds in reversed(points)} | dict(known)
    return dict(sorted(told.items())[-STEPS:])
