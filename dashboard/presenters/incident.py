"""One incident: the verdict, the clock of its recovery, the evidence, what was done and whether it is the same run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controller.clock import aware
from controller.decision.actions import HOLD_NODE, NOTIFY, REQUEUE
from controller.models import Action, Incident, Recovery
from controller.queries.phases import Phases, phases_of
from controller.queries.tenants import Tenant
from dashboard import formats, words
from dashboard.presenters.evidence import EvidenceView, evidence_view
from dashboard.presenters.nodes import HOLD_FLAGS
from dashboard.presenters.same_run import VerifyLine, same_run
from dashboard.presenters.tenants import waits_words
from dashboard.presenters.trust import Advice, advice_of
from dashboard.words import Word

# Phase colours by position, as the time parts have them; what repeats steps is hatched.
TONES = {
    "detected": "down",
    "diagnosed": "save",
    "killed": "slow",
    "torn_down": "down",
    "held": "slow",
    "requeued": "start",
    "released": "save",
    "allocated": "queue",
    "launched": "queue",
    "rendezvous": "start",
    "loaded": "load",
    "warmed_up": "save",
    "first_step": "kept",
    "first_new_step": "redo",
}


# An action that is due so long after it was decided waits on purpose.
LATER = timedelta(seconds=5)


@dataclass(frozen=True)
class PhaseLine:
    words: str
    tone: str
    took: str
    clock: str
    source: str


@dataclass(frozen=True)
class ActionLine:
    word: Word
    what: str
    target: str
    node: str
    took: str
    notes: list[str]
    lines: list[tuple[str, str]]


@dataclass(frozen=True)
class IncidentView:
    incident: Incident
    word: Word
    when: str
    confidence: str
    phases: list[PhaseLine]
    phases_json: dict[str, Any] | None
    rto: str
    missing: str
    evidence: EvidenceView
    advice: Advice
    actions: list[ActionLine]
    left_out: list[str]  # what a ceiling or a missing right kept from being done
    verify_word: Word
    verify_answer: str
    verify_lines: list[VerifyLine]
    cost: str


def incident_view(incident: Incident, tenants: Mapping[int, list[Tenant]]) -> IncidentView:
    """`incident` as `queries.incidents.with_story` reads it; `tenants` of the nodes that it holds, by node id."""
    recovery = recovery_of(incident)
    waits = _waits(incident, tenants)
    phases = phases_of(recovery.stamps if recovery is not None else {})
    requeued = any(a.kind == REQUEUE and a.state != "refused" for a in incident.actions.all())
    same = same_run(recovery, requeued)
    return IncidentView(
        incident=incident,
        word=words.of_incident(incident.state, recovery.verification if recovery else ""),
        when=_when(incident),
        confidence=words.confidence(incident.confidence),
        phases=_phase_lines(phases),
        phases_json=_phases_json(phases),
        rto=formats.NONE if phases.total is None else formats.units(phases.total, 0.1),
        missing=", ".join(_missing(phases)),
        evidence=evidence_view(incident, list(incident.evidence.all()), _fault(incident, phases)),
        advice=advice_of(incident.assessment),
        actions=[_action_line(a, waits) for a in incident.actions.all()],
        left_out=list(dict.fromkeys(note for decision in incident.decisions.all() for note in decision.notes)),
        verify_word=same.word,
        verify_answer=same.answer,
        verify_lines=same.lines,
        cost=cost_of(recovery),
    )


def recovery_of(incident: Incident) -> Recovery | None:
    """What its own training job went through."""
    return next((r for r in incident.recoveries.all() if r.training_job_id == incident.training_job_id), None)


def _fault(incident: Incident, phases: Phases) -> datetime:
    if phases.fault is not None:
        return aware(phases.fault.at)
    return incident.fault_at or incident.detected_at


def _waits(incident: Incident, tenants: Mapping[int, list[Tenant]]) -> dict[str, str]:
    """By node, what its drain waits for: other people's jobs run on to their end."""
    said = {}
    for hold in incident.holds.all():
        if hold.state == "draining" and HOLD_FLAGS & set(hold.node.flags):
            waits = waits_words(hold.node, tenants.get(hold.node_id, []))
            said[hold.node.name] = f"draining, {waits}" if waits else ""
    return {name: text for name, text in said.items() if text}


def cost_of(recovery: Recovery | None) -> str:
    """`1,412 steps repeated, 83.7 GPU-hours`, of what is known."""
    if recovery is None:
        return ""
    parts = []
    if recovery.rpo_steps is not None:
        parts.append(f"{formats.whole(recovery.rpo_steps)} step{'' if recovery.rpo_steps == 1 else 's'} repeated")
    # Zero of them is a job without GPUs, not a saving.
    if recovery.rpo_gpu_hours:
        parts.append(f"{formats.decimals(recovery.rpo_gpu_hours, 1 if recovery.rpo_gpu_hours >= 1 else 3)} GPU-hours")
    return ", ".join(parts)


def _when(incident: Incident) -> str:
    begin = incident.fault_at or incident.detected_at
    end = incident.ended_at
    if end is None:
        return f"{formats.date_long(begin)}, {formats.clock(begin)} UTC, not over"
    return f"{formats.date_long(begin)}, {formats.clock(begin)} to {formats.clock(end)} UTC"


def _phase_lines(phases: Phases) -> list[PhaseLine]:
    if phases.fault is None:
        return []
    fault = phases.fault
    lines = [PhaseLine("Fault", "none", "0 s", formats.clock_tenths(fault.at), fault.source)]
    lines += [
        PhaseLine(
            p.words, TONES.get(p.name, "slow"), formats.units(p.tenths, 0.1), formats.clock_tenths(p.at), p.source
        )
        for p in phases.phases
    ]
    if phases.verified is not None:
        after = phases.verified_after
        sign = "" if after is None else (f"+ {formats.units(after, 0.1)}" if after >= 0 else "before")
        lines.append(
            PhaseLine("Verified", "verified", sign, formats.clock_tenths(phases.verified.at), phases.verified.source)
        )
    return lines


def _missing(phases: Phases) -> list[str]:
    """Only of a clock that has run out: before that, what is missing is simply yet to come."""
    return [m.lower() for m in phases.missing if m != "Verified"] if phases.total is not None else []


def _phases_json(phases: Phases) -> dict[str, Any] | None:
    """For the bar: the largest phase against the rest, which the lens pulls to full width."""
    parts = [p for p in phases.phases if p.tenths > 0]
    if phases.fault is None or not parts:
        return None
    largest = max(parts, key=lambda p: p.tenths)
    total = sum(p.tenths for p in parts)
    big = largest if len(parts) > 1 and largest.tenths * 2 > total else None
    rest = total - (big.tenths if big else 0)
    end = "first new step" if phases.total is not None else "until now"
    return {
        "left": f"fault {formats.clock(aware(phases.fault.at))}",
        "right": f"{end}, {formats.units(total, 0.1)} later" + (" (RTO)" if phases.total is not None else ""),
        "lens": f"The other {formats.units(rest, 0.1)}" if big else "",
        "title": "Phases of the recovery",
        "parts": [
            {
                "words": p.words,
                "text": formats.units(p.tenths, 0.1),
                "value": p.tenths,
                "tone": TONES.get(p.name, "slow"),
                "big": p is big,
                "hatch": p.name == "first_new_step",
            }
            for p in parts
        ],
    }


def _action_line(action: Action, waits: dict[str, str]) -> ActionLine:
    word = _waits_until(action) or words.of(words.ACTION, action.state)
    params = action.params
    node = action.target if action.kind == HOLD_NODE else ""
    what, target = _what(action, params)
    took = ""
    if action.state == "done" and action.ended_at is not None:
        began = action.started_at or action.created_at
        took = formats.seconds(max((action.ended_at - began).total_seconds(), 0.0))
    notes = [text for text in (action.outcome, action.reason if action.state != "done" else "") if text]
    if node in waits:
        notes.append(waits[node])
    return ActionLine(word, what, target, node, took, notes, _log(action))


def _waits_until(action: Action) -> Word | None:
    """Decided to begin later (a back-off), and not begun yet."""
    if action.state != "ready" or action.stage or action.due_at - action.created_at < LATER:
        return None
    return Word(f"waits until {formats.clock(action.due_at)} UTC", "run", "wait")


def _what(action: Action, params: dict[str, Any]) -> tuple[str, str]:
    if action.kind == HOLD_NODE:
        return ("Adopt the drain of" if params.get("adopt") else "Hold"), action.target
    if action.kind == REQUEUE:
        return "Requeue Slurm job", action.target
    if action.kind == NOTIFY:
        return "Tell the owner and on-call", ""
    return action.kind.replace("_", " ").capitalize(), action.target


def _log(action: Action) -> list[tuple[str, str]]:
    """(time, text) of what was seen and done; entries that cannot be read are shown as they are."""
    lines = []
    for entry in action.log:
        if not isinstance(entry, dict):
            lines.append(("", str(entry)))
            continue
        at = entry.get("at")
        when = formats.clock_tenths(at) if isinstance(at, int | float) else str(at or "")
        stage = str(entry.get("stage") or "")
        lines.append((when, f"{stage}: {entry.get('text', '')}" if stage else str(entry.get("text", ""))))
    return lines
