"""The lines of a spool file (the format is in `spool`): encoded, decoded, read back."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker_hooks.protocol.messages import MessageError, Reader, Record, encode_record
from worker_hooks.protocol.records import decode_record


@dataclass(frozen=True)
class Draft:
    """A record before it has a number."""

    kind: str
    at: float
    body: dict[str, Any]


@dataclass
class SpoolFile:
    """What a spool file holds. `lines` are the unacked records in order: (seq, encoded)."""

    header: dict[str, Any] | None = None
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    last_seq: int = 0
    acked: int = 0
    tailed: dict[str, int] = field(default_factory=dict)


def read_spool(path: Path) -> SpoolFile:
    """Everything readable; a torn or damaged line is skipped. Raises OSError."""
    content = SpoolFile()
    kept: dict[int, bytes] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if not isinstance(data, dict):
            continue
        if "spool" in data:
            content.header = data
        elif isinstance(data.get("acked"), int):
            content.acked = max(content.acked, data["acked"])
        elif isinstance(data.get("tailed"), dict):
            content.tailed.update(data["tailed"])
        elif isinstance(data.get("seq"), int):
            kept[data["seq"]] = line
    content.last_seq = max([content.acked, *kept])
    content.lines = sorted((seq, line) for seq, line in kept.items() if seq > content.acked)
    return content


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def encode_draft(seq: int, draft: Draft) -> bytes:
    try:
        return encode(encode_record(Record(seq, draft.kind, draft.at, draft.body)))
    except (TypeError, ValueError, RecursionError) as error:  # not JSON: an infinity read from `1e999`, for one
        reason = f"{draft.kind}: {error}"
        body = {"name": "set_aside", "rank": None, "data": {"reason": reason}}
        return encode(encode_record(Record(seq, "event", time.time(), body)))


def encode(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()


def decode(line: bytes) -> Record:
    """A record of our own making; one that is damaged all the same travels as an event that says so."""
    data = json.loads(line)
    try:
        return decode_record(Reader.of(data, "record"))
    except MessageError as error:
        body = {"name": "set_aside", "rank": None, "data": {"reason": str(error)}}
        return Record(data["seq"], "event", float(data.get("at") or 0.0), body)
