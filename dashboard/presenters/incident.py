"""One incident: the verdict, the clock of its recovery, the evidence, what was done and whether it is the same run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from controller.clock import aware
from controller.decision.actions import HOLD_NODE, NOTIFY, REQUEUE
from controller.models import Action, Attempt, Evidence, Incident, Recovery
from controller.queries.phases import Phases, phases_of
from controller.queries.verification import CheckLine, Verification, fold, from_lines
from dashboard import formats, words
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
class VerifyLine:
    word: Word
    name: str
    text: str


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
    evidence: list[tuple[Evidence, str]]
    lanes_json: dict[str, Any] | None
    actions: list[ActionLine]
    left_out: list[str]  # what a ceiling or a missing right kept from being done
    verification: Verification | None
    verify_word: Word
    verify_answer: str
    verify_lines: list[VerifyLine]
    cost: str


def incident_view(
    incident: Incident, recovery: Recovery | None, to_attempt: Attempt | None, waits: dict[str, str]
) -> IncidentView:
    """`waits`: by node name, what the drain of a node that it holds waits for."""
    phases = phases_of(recovery.stamps if recovery is not None else {})
    evidence = list(incident.evidence.all())
    verification = _verification(recovery, to_attempt)
    requeued = any(a.kind == REQUEUE and a.state != "refused" for a in incident.actions.all())
    word, answer = _answer(recovery, verification, requeued)
    return IncidentView(
        incident=incident,
        word=words.of_incident(incident.state, recovery.verification if recovery else ""),
        when=_when(incident),
        confidence=f"{incident.confidence:.2f}",
        phases=_phase_lines(phases),
        phases_json=_phases_json(phases),
        rto=formats.NONE if phases.total is None else formats.units(phases.total, 0.1),
        missing=", ".join(_missing(phases)),
        evidence=[(e, words.LAYERS.get(e.layer, e.layer.capitalize())) for e in evidence],
        lanes_json=_lanes(incident, evidence, phases),
        actions=[_action_line(a, waits) for a in incident.actions.all()],
        left_out=list(dict.fromkeys(note for decision in incident.decisions.all() for note in decision.notes)),
        verification=verification,
        verify_word=word,
        verify_answer=answer,
        verify_lines=[_verify_line(line) for line in verification.lines] if verification else [],
        cost=cost_of(recovery),
    )


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


def _lanes(incident: Incident, evidence: list[Evidence], phases: Phases) -> dict[str, Any] | None:
    if not evidence:
        return None
    zero = phases.fault.at if phases.fault is not None else (incident.fault_at or incident.detected_at).timestamp()
    marks = [{"at": 0.0, "words": "fault"}, {"at": incident.detected_at.timestamp() - zero, "words": "detected"}]
    layers = [*words.LAYERS, *sorted({e.layer for e in evidence} - set(words.LAYERS))]
    return {
        "layers": [{"key": k, "words": words.LAYERS.get(k, k.capitalize())} for k in layers],
        "marks": marks,
        "signs": [
            {"n": e.number, "layer": e.layer, "at": e.observed_at.timestamp() - zero, "stance": e.stance}
            for e in evidence
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


def _verification(recovery: Recovery | None, to_attempt: Attempt | None) -> Verification | None:
    if to_attempt is not None and to_attempt.checks:
        return fold(to_attempt.checks, to_attempt.world_size)
    if recovery is not None and recovery.checks:
        return from_lines(recovery.checks)
    return None


def _answer(recovery: Recovery | None, found: Verification | None, awaited: bool) -> tuple[Word, str]:
    """The answer is the ledger's, which also waits for the first new step; a failed line needs no waiting.

    `awaited`: something was requeued, so that an answer will come.
    """
    if found is None:
        return Word("", "idle", "wait"), "Not known yet, no check has been made" if awaited else ""
    agree = f"{found.agreeing} of {len(found.lines)} agree"
    if found.outcome == "FAIL":
        return Word("", "bad", "bad"), f"No, {len(found.lines) - found.agreeing} of {len(found.lines)} differ"
    stamped = recovery is not None and (recovery.verification in ("PASS", "DEGRADED") or "verified" in recovery.stamps)
    if stamped and found.outcome == "DEGRADED":
        return Word("", "warn", "warn"), f"Yes, within limits; {agree}"
    if stamped:
        return Word("", "ok", "ok"), f"Yes, {agree}"
    return Word("", "run", "shield"), f"So far yes, {agree}; the repeated steps are still compared"


def _verify_line(line: CheckLine) -> VerifyLine:
    name = words.CHECK_NAMES.get(line.name, line.name.replace("_", " ").capitalize())
    ranks = f"{line.agreeing} of {line.ranks} rank{'' if line.ranks == 1 else 's'}"
    if line.outcome != "PASS":
        text = f"rank {line.worst_rank}: {_short(line.actual)}, expected {_short(line.expected)}; {ranks} agree"
    elif line.same_everywhere and line.expected == line.actual and _readable(line.actual):
        text = f"{formats.recorded(line.actual)} = what was recorded, {ranks}"
    else:
        text = f"{ranks} agree with what was recorded"
    return VerifyLine(words.CHECK[line.outcome], name, text)


def _readable(text: str) -> bool:
    """A step or a rate says something to a reader; a digest or a structure only that it is equal."""
    return 0 < len(text) <= 48 and not text.startswith(("xxh3_128:", "sha256:", "crc32:")) and "{" not in text


def _short(text: str) -> str:
    """A digest is told by its beginning."""
    text = formats.recorded(text)
    return text if len(text) <= 48 else text[:32] + "…" + text[-8:]
