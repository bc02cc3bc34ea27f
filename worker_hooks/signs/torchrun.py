"""torchrun's failure tables: one sign for each rank that a table names, with the time that the table gives.

```
Root Cause (first observed failure):
[0]:
  time      : 2026-03-04_09:00:08
  host      : gn02
  rank      : 11 (local_rank: 3)
  exitcode  : 1 (pid: 8811)
  error_file: <N/A>
```
Several tables, of several nodes, may run through each other; a table cut short gives what it holds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from worker_hooks.signs.exits import exit_of
from worker_hooks.signs.found import Found, short, sign, whole
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import RAW_CHARS, Scalar, Sign
from worker_hooks.signs.times import LOCAL, read_stamp

_FIELD = re.compile(r"(?P<name>time|host|rank|exitcode|error_file|traceback|message) *: ?(?P<value>.*)$")
_RANK = re.compile(r"(?P<rank>\d{1,7})(?: *\(local_rank: (?P<local>\d{1,6})\))?")
_ROOT = "first observed failure"
_OPEN_TABLES = 256  # nodes whose tables run through each other


@dataclass
class _Entry:
    """One rank of a table so far. `line`: where it began."""

    line: Line
    fields: dict[str, str] = field(default_factory=dict)
    raw: list[str] = field(default_factory=list)


@dataclass
class _Table:
    """What is open of the tables of one stream of lines. `first`: the next entry is the one called the root cause."""

    number: int = 0
    first: bool = False
    rooted: bool = False
    entry: _Entry | None = None


class FailureTables:
    """`triggers`: the short ones find the lines of an entry, whose names are padded to one width."""

    triggers: tuple[bytes, ...] = (b"observed failure", b"      : ", b"exitcode", b"rror_file", b"traceback :")

    def __init__(self) -> None:
        self._tables: dict[object, _Table] = {}
        self._count = 0

    def read(self, line: Line) -> list[Sign]:
        if _ROOT in line.text:
            return self._root(line)
        match = _FIELD.match(line.text)
        if match is None or match["name"] == "message":
            return []
        return self._field(line, match["name"], match["value"].strip())

    def close(self) -> list[Sign]:
        tables, self._tables = self._tables, {}
        return [made for table in tables.values() for made in self._ended(table)]

    def _root(self, line: Line) -> list[Sign]:
        table = self._table(line)
        signs = self._ended(table)
        if table.rooted or not table.number:
            self._begin(table)
        table.first, table.rooted = True, True
        return signs

    def _field(self, line: Line, name: str, value: str) -> list[Sign]:
        table = self._table(line)
        signs: list[Sign] = []
        if table.entry is not None and (name == "time" or name in table.entry.fields):
            signs = self._ended(table)
        if table.entry is None:
            if name in ("error_file", "traceback"):
                return signs  # the rest of an entry that is told already
            if not table.number or (table.rooted and not table.first):
                self._begin(table)
            table.entry = _Entry(line)
        table.entry.fields[name] = value
        table.entry.raw.append(line.text)
        return signs + (self._ended(table) if name == "traceback" else [])

    def _table(self, line: Line) -> _Table:
        stream = (line.node, line.raw[: max(line.raw.find(line.text), 0)].strip() if line.node is None else "")
        table = self._tables.get(stream)
        if table is None:
            if len(self._tables) >= _OPEN_TABLES:
                self._tables.pop(next(iter(self._tables)))
            table = self._tables[stream] = _Table()
        return table

    def _begin(self, table: _Table) -> None:
        self._count += 1
        table.number, table.first, table.rooted = self._count, False, False

    def _ended(self, table: _Table) -> list[Sign]:
        entry, first = table.entry, table.first
        table.entry = None
        if entry is None:
            return []
        table.first = False
        attrs = _attrs(entry.fields) | {"first": first, "table": table.number}
        rank = _RANK.match(entry.fields.get("rank", ""))
        if not {"exit_code", "pid"} & attrs.keys() and rank is None:
            return []  # some other program's list of times and hosts
        made = sign(
            entry.line, Found("torchrun.failure", attrs, int(rank["rank"]) if rank else None, _host(entry.fields))
        )
        raw = " | ".join(text.strip() for text in entry.raw)[:RAW_CHARS]
        return [replace(made, raw=raw, at=_time(entry.fields) if "time" in entry.fields else made.at)]


def _attrs(fields: Mapping[str, str]) -> dict[str, Scalar]:
    attrs: dict[str, Scalar] = exit_of(fields.get("exitcode", ""))
    rank = _RANK.match(fields.get("rank", ""))
    if rank and (local := whole(rank["local"] or "")) is not None:
        attrs["local_rank"] = local
    if host := _host(fields):
        attrs["host"] = host
    if (file := fields.get("error_file", "")) not in ("", "<N/A>"):
        attrs["error_file"] = short(file)
    message = fields.get("traceback", "")
    if message and not message.startswith(("To enable traceback", "Traceback (most recent")):
        attrs["message"] = short(message)
    return attrs


def _host(fields: Mapping[str, str]) -> str | None:
    """The node: a full name is cut at its first dot, an address is kept."""
    host = fields.get("host", "").split(" ", 1)[0]
    if not host or host.startswith("<"):
        return None
    return host if host[0].isdigit() else host.split(".", 1)[0]


def _time(fields: Mapping[str, str]) -> float | None:
    stamp = read_stamp(fields["time"])
    return stamp.value if stamp is not None and stamp.kind == LOCAL else None
