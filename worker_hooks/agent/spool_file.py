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

MAX_HOLE = 1 << 16  # records that a damaged stretch may have held; a number further away is damage itself


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
    """Everything readable; a torn or damaged line is skipped, and a note takes the place of a record that is lost
    before others. Raises OSError."""
    content = SpoolFile()
    kept: dict[int, bytes] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            data = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if not isinstance(data, dict):
            continue
        if "spool" in data:
            content.header = data
        elif _counts(data.get("acked")):
            content.acked = max(content.acked, data["acked"])
        elif isinstance(data.get("tailed"), dict):
            content.tailed.update({name: to for name, to in data["tailed"].items() if _counts(to)})
        elif _is_record(data):
            kept[data["seq"]] = line
    content.lines = _in_a_row(kept, content.acked)
    content.last_seq = content.lines[-1][0] if content.lines else content.acked
    return content


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_record(data: dict[str, Any]) -> bool:
    """Enough of one to travel; what is wrong with the rest of it is said by `decode`."""
    try:
        Reader.of(data, "record").number("at")
    except MessageError:
        return False
    return _counts(data.get("seq"))


def _in_a_row(kept: Mapping[int, bytes], acked: int) -> list[tuple[int, bytes]]:
    """The unacked lines, without a gap: the controller takes numbers only in a row, so one lost record would hold up
    all behind it for ever. A host that dies can leave a hole in the middle of a file on a network file system."""
    lines: list[tuple[int, bytes]] = []
    following = acked + 1
    for seq in sorted(seq for seq in kept if seq > acked):
        if seq - following > MAX_HOLE:
            break
        lines += [(lost, encode_draft(lost, _lost())) for lost in range(following, seq)]
        lines.append((seq, kept[seq]))
        following = seq + 1
    return lines


def _lost() -> Draft:
    data = {"reason": "this record could not be read back from the spool file"}
    return Draft("event", time.time(), {"name": "set_aside", "rank": None, "data": data})


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
        return Record(data["seq"], "event", data["at"], body)
