"""What people are told, in words: one message for each occasion. No channel is known here."""

from dataclasses import dataclass

from controller.decision import actions
from controller.models import Incident


@dataclass(frozen=True)
class Message:
    """`proof` are the lines that the verdict rests on, numbered as on the incident's page; `done` what was tried, and
    what was left out."""

    subject: str
    text: str
    run_id: str
    proof: tuple[str, ...]
    done: tuple[str, ...]


def incident_message(incident: Incident) -> Message:
    job = incident.training_job
    proof = tuple(f"[{e.number}] {e.raw}" for e in incident.evidence.filter(stance="accuses"))
    others = incident.actions.exclude(kind__in=actions.ALWAYS)
    done = tuple(f"{a.kind} {a.target}: {a.state}. {a.outcome}".strip() for a in others)
    left_out = tuple(note for decision in incident.decisions.order_by("pk").only("notes") for note in decision.notes)
    ask = f" {incident.ask}" if incident.ask else ""
    return Message(
        subject=f"{job.name or job.run_id}: {incident.summary}",
        text=f"{incident.reason}.{ask}",
        run_id=job.run_id,
        proof=proof,
        done=(*done, *dict.fromkeys(left_out)),
    )
