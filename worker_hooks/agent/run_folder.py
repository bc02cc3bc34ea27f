"""The node-local folder of an attempt (docs/formats.md section 4): made, read and written by the agent.

Event files are tailed by byte offset, so that a successor can read on exactly where this agent was stopped.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from worker_hooks.agent.spool_file import Draft
from worker_hooks.protocol.messages import MessageError, Reader
from worker_hooks.protocol.records import MAX_POINTS, decode_record
from worker_hooks.protocol.slots import FILE_NAME, create_slots

READ_BYTES = 4 << 20


class FolderError(RuntimeError):
    """The node-local folder cannot be used: somebody else's, or no disk. The text names it."""


def parent_folder(environ: Mapping[str, str], uid: int) -> Path:
    root = environ.get("SLURM_TMPDIR") or environ.get("TMPDIR") or "/tmp"
    return Path(root) / f"relume-{uid}"


def folder_name(run_id: str, generation: int, node: str) -> str:
    return f"{run_id}.g{generation}.{node}"


def make_run_folder(parent: Path, name: str, ranks: int) -> Path:
    """Private to this user: a folder that somebody else put there first is refused, not used."""
    folder = parent / name
    try:
        for path in (parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.lstat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077 or path.is_symlink():
                raise FolderError(f"{path} must be a folder of mode 0700 that belongs to this user")
        create_slots(folder / FILE_NAME, ranks)
        write_control(folder, Control())
    except OSError as error:
        raise FolderError(f"{folder}: {error.strerror}") from error
    return folder


@dataclass(frozen=True)
class Control:
    """What the ranks are told. `save`: the id of the newest request to save now. `interval_s`: how often to save."""

    stop: str | None = None
    superseded: bool = False
    save: str | None = None
    interval_s: float | None = None


def write_control(folder: Path, control: Control) -> None:
    aside = folder / "control.json.new"
    aside.write_text(json.dumps(asdict(control)), encoding="utf-8")
    aside.rename(folder / "control.json")


@dataclass
class EventTail:
    """Reads what ranks appended to `events-*.jsonl`. `offsets` (file name -> bytes) may come from a spool file."""

    folder: Path
    offsets: dict[str, int] = field(default_factory=dict)
    rejected: int = 0
    complaint: str = ""

    def read(self) -> list[Draft]:
        """Whole new lines of every file, in each file's order; a partial last line waits for its rest."""
        drafts: list[Draft] = []
        for path in sorted(self.folder.glob("events-*.jsonl")):
            drafts += self._read_file(path)
        return drafts

    def _read_file(self, path: Path) -> list[Draft]:
        offset = self.offsets.get(path.name, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(READ_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == READ_BYTES:
            end = len(data)  # no record is that long: skip it rather than wait for ever
        self.offsets[path.name] = offset + end
        lines = [line for line in data[:end].split(b"\n") if line]
        drafts = (self._draft(path.name, line) for line in lines)
        return coalesce(draft for draft in drafts if draft is not None)

    def _draft(self, name: str, line: bytes) -> Draft | None:
        """A line that breaks the schema is counted and left in its file: the controller would refuse it for ever."""
        try:
            data = json.loads(line, parse_constant=str)
            if b"\\u" in line:
                data = storable(data)
            record = decode_record(Reader.of({**Reader.of(data, "record").data, "seq": 1}, "record"))
        except (ValueError, RecursionError) as error:
            where = error if isinstance(error, MessageError) else "not JSON"
            self.rejected += 1
            self.complaint = f"{name}: a record was set aside: {where}"
            return None
        return Draft(record.kind, record.at, record.body)


def storable(value: Any) -> Any:
    """JSON can carry NUL and half surrogates; databases refuse them, for ever. They are replaced here."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return value


def coalesce(drafts: Iterable[Draft]) -> list[Draft]:
    """Join metric points of the same rank and name into one record; the order of all other records is kept."""
    joined: list[Draft] = []
    open_at: dict[tuple[Any, ...], int] = {}
    for draft in drafts:
        if draft.kind != "metrics":
            joined.append(draft)
            continue
        body = draft.body
        if body.keys() != {"rank", "name", "steps", "times", "values"}:
            joined.append(draft)  # keys of a newer writer: their meaning is unknown, so the record stays as it is
            continue
        key = (body["rank"], body["name"])
        index = open_at.get(key)
        if index is None or len(joined[index].body["steps"]) + len(body["steps"]) > MAX_POINTS:
            open_at[key] = len(joined)
            joined.append(draft)
            continue
        merged = dict(joined[index].body)
        for name in ("steps", "times", "values"):
            merged[name] = merged[name] + body[name]
        joined[index] = Draft("metrics", draft.at, merged)
    return joined
