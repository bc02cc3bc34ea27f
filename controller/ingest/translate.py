"""What one message's new records mean for the tables, as plain values; nothing here touches the database.

Times become the controller's: `at` plus the agent's measured clock offset. A value that no column can hold is a
`MessageError` (the sender sets that record aside), never a database error that it would retry for ever.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controller.clock import aware
from controller.ingest import losses, saves, work
from controller.ingest.changes import Changes, CheckpointNote, Points, ProbeAnswer
from controller.ingest.importance import HARD, order_of
from controller.ingest.ranges import INT32, INT64, LAST_YEAR, TEXT, check_node_name, when, whole
from controller.ingest.signs import sign_note
from worker_hooks.protocol import exit_codes
from worker_hooks.protocol.messages import Message, MessageError, Record
from worker_hooks.protocol.tiers import PLACES, SHARED

LOG_TAIL_CHARS = 16384
CHECKS_A_RECORD = 32
FACTS = 64

# event name -> the Attempt column that keeps when it first happened
STAMPS = {
    "rank_started": "launched_at",
    "rendezvous": "rendezvous_at",
    "loaded": "loaded_at",
    "warmed_up": "warmed_up_at",
    "first_step": "first_step_at",
    "first_new_step": "first_new_step_at",
    "finished": "finished_at",
}
SILENT_EVENTS = frozenset({"agent_started", "generation_minted", "stopped"})
DECISIVE_EVENTS = frozenset({"rank_exited", "first_step", "first_new_step", "finished", "stopped"})
_AFTER_LOADING = frozenset({"warming_up", "training", "saving", "evaluation", "finished"})
MEANINGS = {
    exit_codes.ATTEMPT_FAILED: "attempt_failed",
    exit_codes.SUPERSEDED: "superseded",
    exit_codes.VERIFICATION_FAILED: "verification_failed",
}


def check_ranges(message: Message) -> None:
    """The limits of the columns that the decoder does not know. Raises MessageError."""
    check_node_name(message.node)
    when(message.sent_at, "message.sent_at")
    when(message.agent.started_at, "message.agent.started_at")
    _small(message.generation, "message.generation")
    _small(message.job.restart_count, "message.job.restart_count")
    if abs(message.agent.clock_offset_s or 0.0) > LAST_YEAR:
        raise MessageError("message.agent.clock_offset_s", "out of range")
    port = message.agent.probe_port
    if port is not None and not 0 < port < 65536:
        raise MessageError("message.agent.probe_port", f"{port} is not a port")
    for i, rank in enumerate(message.ranks):
        _small(rank.rank, f"message.ranks[{i}].rank")
    for i, record in enumerate(message.records):
        when(record.at, f"message.records[{i}].at")


def next_in_row(records: Iterable[Record], last_seq: int) -> list[Record]:
    """The records that follow `last_seq` without a gap, each once, in order; what was committed before is skipped."""
    row: list[Record] = []
    for record in sorted(records, key=lambda item: item.seq):
        if record.seq == last_seq + len(row) + 1:
            row.append(record)
        elif record.seq > last_seq + len(row):
            break
    return row


def translate(message: Message, records: Iterable[Record], offset_s: float, now: float) -> Changes:
    """Raises MessageError, which names the record."""
    changes = Changes()
    for record in records:
        if record.kind == "sign":
            order = order_of(record.body["code"])
            note = sign_note(record, offset_s, now, order)
            changes.signs.append(note)
            saves.note_sign(changes, record.body, note.at)
            changes.decisive |= order == HARD
            continue
        at = when(min(max(record.at + offset_s, 0.0), LAST_YEAR), f"record {record.seq}")
        handler = _HANDLERS.get(record.kind)
        if handler is None:
            changes.count_unknown(record.kind)
        else:
            handler(changes, message, record, at)
    return changes


def heartbeat_step(message: Message, offset_s: float) -> tuple[int, datetime] | None:
    """The furthest step that a rank stands at, and when it got there; None before anything was trained."""
    stands = [r for r in message.ranks if r.step is not None and r.step >= 0 and r.phase in _AFTER_LOADING]
    steps = [(r.step or 0, r.progress_age_s or 0.0) for r in stands]
    if not steps:
        return None
    step, age = max(steps, key=lambda pair: (pair[0], -pair[1]))
    return step, aware(min(max(message.sent_at - age + offset_s, 0.0), LAST_YEAR))


def _metrics(changes: Changes, message: Message, record: Record, at: datetime) -> None:
    body = record.body
    rank = _small(body["rank"], f"record {record.seq}.rank")
    if not body["steps"]:
        return
    changes.points.append(
        Points(record.seq, rank, body["name"], list(body["steps"]), list(body["times"]), list(body["values"]))
    )
    losses.note(changes, rank, body)
    work.note(changes, rank, body)
    if body["name"] == "loss":
        changes.reached(max(body["steps"]), at)


def _event(changes: Changes, message: Message, record: Record, at: datetime) -> None:
    name, data, rank = record.body["name"], record.body["data"], record.body.get("rank")
    changes.decisive |= name in DECISIVE_EVENTS
    if name in STAMPS:
        changes.stamps.setdefault(STAMPS[name], at)
    if name == "rank_exited":
        changes.exits.append(_exit(message, rank, data, at))
    elif name == "rank_log":
        changes.log_tails[str(rank)] = str(data.get("tail", ""))[-LOG_TAIL_CHARS:]
    elif name == "loaded" and changes.start_step is None:
        changes.start_step = whole(data.get("step"))
        changes.start_folder = str(data.get("folder") or "")[:255]
    elif name == "generation_minted":
        changes.world_size = whole(data.get("world_size"), INT32)
    elif name in ("first_step", "first_new_step", "finished") and whole(data.get("step")) is not None:
        changes.reached(int(data["step"]), at)
        changes.early = changes.early or str(data.get("early") or "")[:255]
    elif name in ("dropped", "set_aside"):
        changes.lost[name] = changes.lost.get(name, 0) + (whole(data.get("records"), INT32) or 1)
    elif name in ("save_asked", "save_begun"):
        saves.note_event(changes, name, data, at)
    elif name not in STAMPS and name not in SILENT_EVENTS:
        changes.count_unknown(f"event {name}")


def _exit(message: Message, rank: int | None, data: dict[str, Any], at: datetime) -> dict[str, Any]:
    """As `decision.facts.RankExit` takes it."""
    code, signal = whole(data.get("exit_code"), least=-INT32), whole(data.get("signal"))
    return {
        "rank": rank if rank is not None else -1,
        "node": message.node,
        "exit_code": code,
        "signal": signal,
        "at": at.timestamp(),
        "torn_down": data.get("torn_down") is True,
        "meaning": MEANINGS.get(code) if code is not None else None,
    }


def _checkpoint(changes: Changes, message: Message, record: Record, at: datetime) -> None:
    body = record.body
    saves.note_checkpoint(changes, body, at)
    changes.checkpoints.append(
        CheckpointNote(
            folder=body["folder"],
            step=body["step"],
            state=body["state"],
            at=at,
            reason=str(body.get("reason") or "")[:4096],
            bytes=whole(body.get("bytes")),
            blocked_s=_seconds(body.get("blocked_s")),
            durable_s=_seconds(body.get("durable_s")),
            tier=body.get("tier") or SHARED,
            copies=whole(body.get("copies")),
        )
    )


def _verification(changes: Changes, message: Message, record: Record, at: datetime) -> None:
    body = record.body
    changes.decisive = True
    changes.checks.append(
        {
            "rank": _small(body["rank"], f"record {record.seq}.rank"),
            "stage": body["stage"],
            "step": body["step"],
            "outcome": body["outcome"],
            "checks": [_check(check) for check in body["checks"][:CHECKS_A_RECORD]],
            "restored_from": _places(body.get("restored_from")),
            "at": at.timestamp(),
            "node": message.node,
        }
    )


def _places(told: Any) -> dict[str, int]:
    """How many shares that rank read from where; {} where all came from shared storage."""
    counts = {place: whole(told.get(place), INT32) for place in PLACES} if isinstance(told, dict) else {}
    return {place: count for place, count in counts.items() if count}


def _probe(changes: Changes, message: Message, record: Record, at: datetime) -> None:
    """`id` is the row of the NodeCheck that asked; anything else is somebody's invention and answers nothing."""
    text = record.body["id"]
    if text.isascii() and text.isdigit() and len(text) < 19:
        changes.probes.append(ProbeAnswer(int(text), record.body["outcome"]))
        changes.decisive = True
    else:
        changes.count_unknown("probe")


def _run_facts(changes: Changes, message: Message, record: Record, at: datetime) -> None:
    saves.note_facts(changes, record.body)
    work.note_role(changes, record.body.get("rank"), record.body.get("role"))
    for key, value in record.body.items():
        if key not in ("rank", "role") and value is not None and len(key) <= 64 and len(changes.run_facts) < FACTS:
            changes.run_facts[key] = _scalar(value)


def _check(check: dict[str, Any]) -> dict[str, Any]:
    plain = {key: _scalar(check.get(key)) for key in ("name", "outcome", "expected", "actual")}
    return plain | {key: _scalar(check[key]) for key in ("code", "why") if check.get(key) is not None}


def _scalar(value: Any) -> Any:
    """Rows stay small whatever a job sends: numbers and flags as they are, anything else as bounded text."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= INT64):
        return value
    return (value if isinstance(value, str) else repr(value))[:TEXT]


_HANDLERS = {
    "metrics": _metrics,
    "event": _event,
    "checkpoint": _checkpoint,
    "verification": _verification,
    "probe": _probe,
    "run_facts": _run_facts,
}


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 <= value <= 1e9 else None


def _small(value: int, where: str) -> int:
    if not 0 <= value <= INT32:
        raise MessageError(where, f"{value} is out of range")
    return value
