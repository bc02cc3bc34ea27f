"""Tells what happens while it happens: one line for each thing that changed in the controller's answer."""

import time
from collections.abc import Iterator
from typing import Any

Line = tuple[float, str]


class Story:
    """Prints each line once, with the seconds since `start` (a Unix time). `say` adds the teller's own lines."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.told: set[str] = set()

    def say(self, text: str, at: float | None = None) -> None:
        """The clock is that of the event where its row has one, so late news stand with their own time."""
        seconds = (time.time() if at is None else at) - self.start
        print(f"{seconds:8.1f} s  {text}", flush=True)

    def follow(self, detail: dict[str, Any]) -> None:
        """Says what is new in this answer of the controller."""
        for at, text in sorted(_lines(detail)):
            if text not in self.told:
                self.told.add(text)
                self.say(text, at)


def _lines(detail: dict[str, Any]) -> Iterator[Line]:
    for attempt in detail["attempts"]:
        yield from _attempt(attempt)
    incident = detail.get("incident")
    if incident is not None:
        yield from _incident(incident)
    for recovery in detail["recoveries"]:
        if recovery["verification"]:
            at = recovery["stamps"].get("verified", {}).get("at", detail["state_at"])
            yield at, f"verification: {recovery['verification']}; {recovery['rpo_steps']} steps to repeat"
    if detail["state"] in ("finished", "stopped", "cancelled"):
        yield detail["state_at"], f"the training job is {detail['state']}: {detail['state_reason']}"


def _attempt(attempt: dict[str, Any]) -> Iterator[Line]:
    name = f"attempt {attempt['generation']}"
    stamps = (
        ("launched_at", f"{name}: ranks start on {', '.join(attempt['nodes'])}"),
        ("loaded_at", f"{name}: state of step {attempt['start_step']} loaded ({attempt['start_folder'] or 'fresh'})"),
        ("first_step_at", f"{name}: first step"),
        ("first_new_step_at", f"{name}: first new step"),
    )
    for key, text in stamps:
        if attempt[key] is not None:
            yield attempt[key], text
    if attempt["outcome"]:
        yield attempt["ended_at"] or attempt["created_at"], f"{name} ended: {attempt['outcome']}"


def _incident(incident: dict[str, Any]) -> Iterator[Line]:
    yield incident["detected_at"], f"incident {incident['id']}: {incident['summary']}"
    for evidence in incident["evidence"]:
        mark = {"accuses": "!", "clears": "ok"}.get(evidence["stance"], "?")
        yield incident["detected_at"], f"    {mark:>2} {evidence['layer']}: {evidence['raw']}"
    for action in incident["actions"]:
        if action["ended_at"] is not None:
            yield action["ended_at"], f"{action['kind']} {action['target']}: {action['state']}, {action['outcome']}"
