"""`relume checkpoints diff A B`: what differs between two checkpoints of ours. docs/checkpoints.md."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker_hooks.cli import checkpoints_text as text
from worker_hooks.cli.checkpoints_pieces import Pace
from worker_hooks.cli.checkpoints_stored import Stored, UnreadableCheckpoint, equal, lease, read_stored
from worker_hooks.cli.checkpoints_values import largest_difference
from worker_hooks.protocol.messages import encode_number

Json = dict[str, Any]
_SHOWN = 20
_HIDDEN = ("state",)


def difference(one: Path, other: Path, *, values: bool) -> Json:
    """The JSON of the command. Raises UnreadableCheckpoint, DigestError, OSError."""
    a, b = read_stored(one), read_stored(other)
    try:
        with lease(a.folder), lease(b.folder):
            tensors = _tensors(a, b, values=values)
    except ValueError as error:
        raise UnreadableCheckpoint(f"a file is shorter than its index says, verify both: {error}") from None
    found = {
        "version": 1,
        "a": str(a.folder),
        "b": str(b.folder),
        "head": _leaves(_head(a), _head(b)),
        "learning_rate": _pair(_rates(a), _rates(b)),
        "layout": _leaves(a.run.get("layout", {}), b.run.get("layout", {})),
        "versions": _leaves(a.run.get("versions", {}), b.run.get("versions", {})),
        "data": _by_rank(a, b, "data"),
        "random": _by_rank(a, b, "random"),
        "values": _leaves(_values(a), _values(b)),
        "tensors": tensors,
    }
    same = not any(found[key] for key in _SECTIONS) and not any(tensors[key] for key in _DIFFERING)
    return {**found, "same": same}


_SECTIONS = ("head", "learning_rate", "layout", "versions", "data", "random", "values")
_DIFFERING = ("only_a", "only_b", "changed_kind", "differ", "not_comparable")


# --- everything but tensors ---------------------------------------------------------------------------------------


def _head(stored: Stored) -> Json:
    first = stored.ranks[0]
    return {
        "run_id": stored.manifest.run_id if stored.manifest else None,
        "committed": stored.manifest is not None,
        "step": first.step,
        "generation": first.generation,
        "world_size": len(stored.ranks),
        "threads": stored.run.get("threads"),
        "config_digest": stored.run.get("config_digest"),
    }


def _rates(stored: Stored) -> list[float | str]:
    """Of every group of every optimizer, as decimals."""
    found = stored.ranks[0].fingerprint.get("learning_rate", [])
    return [_decimal(item) for item in found] if isinstance(found, list) else []


def _decimal(item: object) -> float | str:
    try:
        return encode_number(float.fromhex(str(item)))
    except (ValueError, OverflowError):
        return str(item)


def _values(stored: Stored) -> Json:
    """JSON values of the tracked objects: schedulers, scalers, the optimizers' settings; rank 0's."""
    return stored.ranks[0].state


def _pair(one: object, other: object) -> Json | None:
    return None if one == other else {"a": one, "b": other}


def _by_rank(a: Stored, b: Stored, name: str) -> list[Json]:
    """What differs of `data` or `random`, rank by rank; ranks that only one of them has are in `head`."""
    found = []
    for one, other in zip(a.ranks, b.ranks, strict=False):
        differs = _leaves(_told(getattr(one, name)), _told(getattr(other, name)))
        if differs:
            found.append({"rank": one.rank, "differs": differs})
    return found


def _told(values: Json) -> Json:
    """The digests of the random state say what differs; the state itself is thousands of numbers."""
    return {key: value for key, value in values.items() if key not in _HIDDEN}


def _leaves(one: object, other: object) -> list[Json]:
    """Paths whose values differ. A value that one side lacks is null there, and `only` says whose it is."""
    left, right = dict(_flat(one, "")), dict(_flat(other, ""))
    found = []
    for path in sorted({*left, *right}):
        if path not in right:
            found.append({"what": path, "a": left[path], "b": None, "only": "a"})
        elif path not in left:
            found.append({"what": path, "a": None, "b": right[path], "only": "b"})
        elif left[path] != right[path]:
            found.append({"what": path, "a": left[path], "b": right[path]})
    return found


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and len(value) <= _SHOWN:
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}[{index}]")
    else:
        yield path, value


# --- tensors ------------------------------------------------------------------------------------------------------


def _tensors(a: Stored, b: Stored, *, values: bool) -> Json:
    pace = Pace()
    common = sorted(set(a.tensors) & set(b.tensors))
    changed = [key for key in common if _kind(a, key) != _kind(b, key)]
    comparable = [key for key in common if _kind(a, key) == _kind(b, key)]
    equals = {key: equal(a, b, key, pace) for key in comparable}
    differ = [key for key in comparable if equals[key] is False]
    return {
        "common": len(common),
        "equal": sum(1 for found in equals.values() if found),
        "only_a": sorted(set(a.tensors) - set(b.tensors)),
        "only_b": sorted(set(b.tensors) - set(a.tensors)),
        "changed_kind": [{"key": key, "a": _kind(a, key), "b": _kind(b, key)} for key in changed],
        "differ": [_differing(a, b, key, pace, values) for key in differ],
        "not_comparable": [key for key in comparable if equals[key] is None],
    }


def _kind(stored: Stored, key: str) -> str:
    tensor = stored.tensors[key]
    return f"{tensor.dtype}{list(tensor.size)}"


def _differing(a: Stored, b: Stored, key: str, pace: Pace, values: bool) -> Json:
    if not values:
        return {"key": key}
    found = largest_difference(a, b, key, pace)
    return {"key": key, "largest_difference": None if found is None else encode_number(found)}


# --- for people ---------------------------------------------------------------------------------------------------


def lines(found: Json) -> Iterator[str]:
    yield f"a: {found['a']}"
    yield f"b: {found['b']}"
    if found["same"]:
        yield f"the same: {found['tensors']['equal']} tensors, bit by bit, and everything beside them"
        return
    for name in ("head", "layout", "versions"):
        yield from _leaf_lines(name, found[name])
    if found["learning_rate"]:
        yield f"learning rate: {found['learning_rate']['a']} -> {found['learning_rate']['b']}"
    for name, title in (("data", "data position"), ("random", "random state")):
        for item in found[name]:
            yield from _leaf_lines(f"{title}, rank {item['rank']}", item["differs"])
    yield from _leaf_lines("values of tracked objects", found["values"])
    yield from _tensor_lines(found["tensors"])


def _leaf_lines(title: str, leaves: list[Json]) -> Iterator[str]:
    if leaves:
        yield f"{title}:"
    for leaf in leaves[:_SHOWN]:
        yield text.plain(f"  {leaf['what']}: {_short(leaf['a'])} -> {_short(leaf['b'])}")
    if len(leaves) > _SHOWN:
        yield f"  and {len(leaves) - _SHOWN} more"


def _short(value: object) -> str:
    said = "-" if value is None else str(value)
    return said if len(said) <= 60 else said[:57] + "..."


def _tensor_lines(found: Json) -> Iterator[str]:
    yield f"tensors: {found['common']} in both, {found['equal']} of them bit-equal, {len(found['differ'])} differ"
    for name, title in (("only_a", "only in a"), ("only_b", "only in b"), ("not_comparable", "cut differently")):
        yield from _names(title, found[name])
    yield from _names(
        "another type or size", [f"{item['key']} ({item['a']} -> {item['b']})" for item in found["changed_kind"]]
    )
    yield from _names("differ", [_with_value(item) for item in found["differ"]])


def _names(title: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"  {title}:"
    yield from (text.plain(f"    {name}") for name in names[:_SHOWN])
    if len(names) > _SHOWN:
        yield f"    and {len(names) - _SHOWN} more"


def _with_value(item: Json) -> str:
    if "largest_difference" not in item:
        return str(item["key"])
    value = item["largest_difference"]
    if value is None:
        return f"{item['key']}  (its type cannot be read here)"
    said = f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else value
    return f"{item['key']}  largest difference {said}"
