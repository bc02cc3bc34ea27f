"""Reads a flight recorder dump (pickle or JSON, formats 1.x to 2.10) into signs: where one rank stands in each of its
process groups.

A dump holds `pg_config` (groups by name, with members), `pg_status` (counters by the number that a group has in its own
process) and `entries` (the latest operations). Only entries tie number and name together; for a group without entries
the order of creation does, where both sides list the same groups. What cannot be tied is left out.

Counters of a group with point-to-point operations mix both kinds, so there the entries alone are believed. On gloo a
finished operation is `retired` and keeps the state `scheduled`; on NCCL one that is retired unfinished has timed out.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker_hooks.signs.plain_pickle import MAX_BYTES, RefusedPickle, read_plain
from worker_hooks.signs.sign import Scalar, Sign

STATE, REFUSED = "collective.state", "flight_recorder.refused"
_SOURCE, _LAYER = "flight_recorder", "library"
_MAX_GROUPS = 256
_MAX_ENTRIES = 20_000
_TEXT = 200
_PEER = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})$")


@dataclass(frozen=True)
class _Operation:
    """One entry. `peer`: of a point-to-point operation, counted within the group."""

    order: int
    group: str
    number: int | None
    collective: int
    p2p: int
    name: str
    state: str
    is_p2p: bool
    retired: bool
    created_at: float | None
    sizes: str
    dtypes: str
    peer: int | None


@dataclass
class _Group:
    name: str
    description: str = ""
    members: tuple[int, ...] = ()
    number: int | None = None
    operations: list[_Operation] = field(default_factory=list)


def read_dump(data: bytes, rank: int | None, node: str | None = None, at: float | None = None) -> list[Sign]:
    """One sign per process group of `rank`, or one that says why the dump was refused. Never raises; runs nothing of
    what the dump holds. `at`: when it was written."""
    try:
        return _signs(_plain(data), rank, node, at)
    except RefusedPickle as error:
        return [refused(str(error), rank, node, at)]


def refused(why: str, rank: int | None, node: str | None = None, at: float | None = None) -> Sign:
    """The reader's own word that it did not read a dump: no evidence against anybody."""
    text = f"flight recorder dump refused: {why}"[:_TEXT]
    return Sign(REFUSED, text, _LAYER, _SOURCE, node, rank, at, {"text": why[:_TEXT]})


def fold(ranks: Iterable[int]) -> str:
    """`0-3`, `0-12:4`, `1,5,6`: ranks in order, runs with their stride."""
    rest = sorted(set(ranks))
    parts = []
    while rest:
        stride = rest[1] - rest[0] if len(rest) > 1 else 1
        length = 1
        while length < len(rest) and rest[length] - rest[length - 1] == stride:
            length += 1
        if length < 3 and stride != 1:
            length = 1
        first, last = rest[0], rest[length - 1]
        parts.append(str(first) if length == 1 else f"{first}-{last}" + (f":{stride}" if stride != 1 else ""))
        rest = rest[length:]
    return ",".join(parts)


# --- the dump -----------------------------------------------------------------------------------------------------


def _plain(data: bytes) -> Mapping[str, Any]:
    if len(data) > MAX_BYTES:
        raise RefusedPickle(f"larger than {MAX_BYTES >> 20} MiB")
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RefusedPickle(f"not JSON: {error}") from None
    else:
        value = read_plain(data)
    if isinstance(value, list):  # the first versions wrote the entries alone
        value = {"entries": value}
    if not isinstance(value, Mapping):
        raise RefusedPickle("no flight recorder dump")
    if not any(key in value for key in ("entries", "pg_status")):
        raise RefusedPickle("no flight recorder dump: it has neither entries nor pg_status")
    return value


def _signs(dump: Mapping[str, Any], rank: int | None, node: str | None, at: float | None) -> list[Sign]:
    status = {number: value for key, value in _items(dump.get("pg_status")) if (number := _int(key)) is not None}
    groups = _groups(dump, status)
    ordered = sorted(groups.values(), key=lambda group: (group.number is None, group.number or 0, group.name))
    found = (
        _sign(group, None if group.number is None else status.get(group.number), rank, node, at)
        for group in ordered[:_MAX_GROUPS]
    )
    return [sign for sign in found if sign is not None]


def _items(value: object) -> list[tuple[object, Mapping[str, Any]]]:
    if not isinstance(value, Mapping):
        return []
    return [(key, item) for key, item in list(value.items())[: 4 * _MAX_GROUPS] if isinstance(item, Mapping)]


def _groups(dump: Mapping[str, Any], status: Mapping[int, Mapping[str, Any]]) -> dict[str, _Group]:
    groups: dict[str, _Group] = {}
    for key, config in _items(dump.get("pg_config")):
        name = str(config.get("name") or key)[:_TEXT]
        if name:
            groups[name] = _Group(name, str(config.get("desc") or "")[:_TEXT], _ranks(config.get("ranks")))
    entries = dump.get("entries")
    for order, entry in enumerate(entries[-_MAX_ENTRIES:] if isinstance(entries, list) else []):
        if isinstance(entry, Mapping):
            _place(groups, entry, order)
    _number_by_order(groups, status)
    return groups


def _place(groups: dict[str, _Group], entry: Mapping[str, Any], order: int) -> None:
    operation = _operation(entry, order)
    group = groups.setdefault(operation.group, _Group(operation.group))
    names = entry.get("process_group")
    if not group.description and isinstance(names, (list, tuple)) and len(names) > 1:
        group.description = str(names[1])[:_TEXT]
    group.number = operation.number
    group.operations.append(operation)


def _operation(entry: Mapping[str, Any], order: int) -> _Operation:
    names, number = entry.get("process_group"), _int(entry.get("pg_id"))
    group = str(names[0]) if isinstance(names, (list, tuple)) and names else str(number if number is not None else "")
    name = str(entry.get("profiling_name") or "")[:_TEXT]
    peer = _PEER.search(name)
    created = _int(entry.get("time_created_ns"))
    return _Operation(
        order=order,
        group=group[:_TEXT],
        number=number,
        collective=_int(entry.get("collective_seq_id", entry.get("seq_id"))) or 0,
        p2p=_int(entry.get("p2p_seq_id")) or 0,
        name=name.split(":", 1)[-1],
        state=str(entry.get("state") or "")[:32],
        is_p2p=bool(entry.get("is_p2p", peer is not None)),
        retired=bool(entry.get("retired")),
        created_at=created / 1e9 if created else None,
        sizes=json.dumps(_sizes(entry.get("input_sizes")))[:_TEXT],
        dtypes=",".join(str(item) for item in _list(entry.get("input_dtypes"))[:4])[:_TEXT],
        peer=int(peer[3]) if peer else None,
    )


def _sizes(value: object) -> list[list[int]]:
    return [[_int(size) or 0 for size in _list(sizes)[:16]] for sizes in _list(value)[:4]]


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _number_by_order(groups: Mapping[str, _Group], status: Mapping[int, Mapping[str, Any]]) -> None:
    """Groups are numbered and named in order of creation: believed only if it agrees with all that the entries say."""
    if len(groups) != len(status) or not all(name.isdigit() for name in groups):
        return
    pairs = list(zip(sorted(groups, key=int), sorted(status), strict=True))
    if all(groups[name].number in (None, number) for name, number in pairs):
        for name, number in pairs:
            groups[name].number = number


def _ranks(value: object) -> tuple[int, ...]:
    """Members, as text `[0, 1, 2]` or as numbers."""
    items = re.findall(r"\d{1,7}", value[: 1 << 20]) if isinstance(value, str) else _list(value)
    return tuple(number for item in items if (number := _int(item)) is not None)


def _int(value: object) -> int | None:
    """JSON dumps write counters as text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        number = int(value if isinstance(value, int) else value[:20])
    except ValueError:
        return None
    return number if abs(number) < 1 << 63 else None


# --- one group ----------------------------------------------------------------------------------------------------


def _sign(
    group: _Group, status: Mapping[str, Any] | None, rank: int | None, node: str | None, at: float | None
) -> Sign | None:
    if status is None and not group.operations:
        return None
    waiting = [one for one in group.operations if not _finished(one, status)]
    oldest = min(waiting, key=lambda one: one.order, default=None)
    attrs: dict[str, Scalar] = {"group": group.name, **_counters(group, status, waiting), "waiting": len(waiting)}
    if group.description not in ("", "undefined"):
        attrs["group_name"] = group.description
    if group.members:
        attrs["size"] = len(group.members)
        members = fold(group.members)
        attrs["members"] = members if len(members) <= 1000 else f"{members[:1000]}…"
    if oldest is not None:
        attrs |= _oldest(oldest, group.members)
    raw = _sentence(rank, group, oldest, attrs)
    return Sign(STATE, raw, _LAYER, _SOURCE, node, rank, (oldest.created_at if oldest else None) or at, attrs)


def _finished(one: _Operation, status: Mapping[str, Any] | None) -> bool:
    if one.state == "completed":
        return True
    completed = _int(status.get("last_completed_collective")) if status is not None else None
    return one.retired and (completed is None or one.is_p2p or one.collective <= completed)


def _counters(group: _Group, status: Mapping[str, Any] | None, waiting: list[_Operation]) -> dict[str, Scalar]:
    mixed = any(one.is_p2p for one in group.operations)
    if status is not None and not mixed:
        names = ("enqueued", "started", "completed")
        found = {name: _int(status.get(f"last_{name}_collective")) for name in names}
        return {name: number for name, number in found.items() if number is not None and number >= 0}
    entered = max((one.collective for one in group.operations), default=0)
    pending = [one.collective for one in waiting if not one.is_p2p]
    counters: dict[str, Scalar] = {"enqueued": entered, "completed": min(pending, default=entered + 1) - 1}
    return counters | ({"p2p_enqueued": max(one.p2p for one in group.operations)} if mixed else {})


def _oldest(one: _Operation, members: tuple[int, ...]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {
        "op": one.name,
        "state": one.state,
        "sequence": one.p2p if one.is_p2p else one.collective,
        "sizes": one.sizes,
        "dtypes": one.dtypes,
        "p2p": one.is_p2p,
    }
    if one.peer is not None and one.peer < len(members):
        found["peer_rank"] = members[one.peer]
    return found


def _sentence(rank: int | None, group: _Group, oldest: _Operation | None, attrs: Mapping[str, Scalar]) -> str:
    who = f"rank {rank}" if rank is not None else "a rank"
    where = f"group {group.name}" + (f" ({group.description})" if group.description else "")
    counts = ", ".join(f"{name} {attrs[name]}" for name in ("enqueued", "started", "completed") if name in attrs)
    waits = f"; waits in {oldest.name} {attrs['sequence']} ({oldest.state})" if oldest is not None else ""
    return f"{who} in {where}: {counts}{waits}"
