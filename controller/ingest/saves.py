"""What an attempt's saves were like, and which were asked for at a moment: kept with the attempt as one JSON value.

`asked`: signals, stop requests and "save now", once each however many ranks tell; `begun`: the saves taken for them.
`left_out`, `in_pieces` and `linked_bytes` add up over its committed saves. `waived`: what of its state it did without.
`alarms`: what went wrong with its checkpoints, by code, with the newest words and how often. `failing`: the saves on
shared storage that failed since the last committed one.
"""

from datetime import datetime
from typing import Any

from controller.ingest.changes import Changes
from controller.ingest.ranges import INT32, whole
from worker_hooks.protocol.tiers import SHARED

KEPT = 64
TEXT = 255
RAW = 1024
SUMS = ("left_out", "in_pieces", "linked_bytes")
SAVE_FAILED = "save_failed"
# Signs of the training side about its checkpoints. A write that failed is told by its save, once for all ranks.
ALARMS = frozenset(
    {
        *("checkpoint_tidy", "checkpoint_pointer", "checkpoint_not_whole", "checkpoint_copy", "checkpoint_peer"),
        *("restarted_from_scratch", "generation_broken"),
    }
)


def note_event(changes: Changes, name: str, data: dict[str, Any], at: datetime) -> None:
    """`save_asked {kind, id}` or `save_begun {step, why}`."""
    if name == "save_asked":
        item: dict[str, Any] = {"kind": str(data.get("kind") or "")[:TEXT], "id": str(data.get("id") or "")[:TEXT]}
    else:
        item = {"step": whole(data.get("step")), "why": str(data.get("why") or "")[:TEXT]}
    changes.saving.setdefault("asked" if name == "save_asked" else "begun", []).append({**item, "at": at.timestamp()})


def note_sign(changes: Changes, body: dict[str, Any], at: datetime) -> None:
    if body["code"] in ALARMS and body["source"] == "training":
        _alarm(changes, body["code"], body["raw"], at)


def _alarm(changes: Changes, code: str, raw: str, at: datetime) -> None:
    alarms = changes.saving.setdefault("alarms", {})
    alarms[code] = {"count": alarms.get(code, {}).get("count", 0) + 1, "raw": raw[:RAW], "at": at.timestamp()}


def note_checkpoint(changes: Changes, body: dict[str, Any], at: datetime) -> None:
    if body["state"] == "failed":
        _alarm(changes, SAVE_FAILED, str(body.get("reason") or ""), at)
    if body["state"] in ("failed", "committed") and body.get("tier") in (None, SHARED):
        _row(changes, body, at)
    if body["state"] != "committed":
        return
    told = {
        "left_out": whole(body.get("skipped"), INT32) or 0,
        "in_pieces": int(body.get("in_pieces") is True),
        "linked_bytes": whole(body.get("bytes_linked")) or 0,
    }
    for name, count in told.items():
        changes.saving[name] = changes.saving.get(name, 0) + count


def _row(changes: Changes, body: dict[str, Any], at: datetime) -> None:
    """`fresh`: the row begins within these records."""
    if body["state"] == "committed":
        changes.saving["failing"] = {"count": 0, "raw": "", "since": None, "fresh": True}
        return
    row = changes.saving.get("failing") or {"count": 0, "since": None, "fresh": False}
    told = {"raw": str(body.get("reason") or "")[:RAW], "since": row["since"] or at.timestamp()}
    changes.saving["failing"] = {**row, **told, "count": row["count"] + 1}


def note_facts(changes: Changes, body: dict[str, Any]) -> None:
    if isinstance(body.get("waived"), str):
        changes.saving["waived"] = body["waived"][:TEXT]


def merged(known: dict[str, Any], changes: Changes) -> dict[str, Any]:
    new = changes.saving
    found = {**known, **{name: known.get(name, 0) + new[name] for name in SUMS if name in new}}
    if "waived" in new:
        found["waived"] = new["waived"]
    if "alarms" in new:
        found["alarms"] = _alarms(known.get("alarms", {}), new["alarms"])
    if "failing" in new:
        row = _failing(known.get("failing"), new["failing"])
        found = {name: value for name, value in found.items() if name != "failing"} | ({"failing": row} if row else {})
    for name, keys in (("asked", ("kind", "id")), ("begun", ("step",))):
        if name in new:
            told = sorted([*known.get(name, []), *new[name]], key=lambda item: float(item["at"]))
            first = {tuple(item[key] for key in keys): item for item in reversed(told)}
            found[name] = [item for item in told if item in first.values()][:KEPT]
    return found


def _alarms(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    counted = {code: alarm["count"] + known.get(code, {}).get("count", 0) for code, alarm in new.items()}
    return {**known, **{code: {**alarm, "count": counted[code]} for code, alarm in new.items()}}


def _failing(known: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any] | None:
    """None where the newest save was committed."""
    row = {name: new[name] for name in ("count", "raw", "since")}
    if known is not None and not new["fresh"]:
        row = {**row, "count": known["count"] + new["count"], "since": known["since"]}
    return row if row["count"] else None
