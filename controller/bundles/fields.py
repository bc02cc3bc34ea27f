"""Typed access to a bundle's JSON: every complaint names the file and the key."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.errors import RelumeError
from controller.slurm import hostlist

MAX_RANKS = 1 << 20
Scalar = str | int | float | bool


class BundleError(RelumeError):
    """A bundle that cannot be read: where (file, key) and what is expected there."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


@dataclass(frozen=True)
class Fields:
    """One JSON object of a bundle. A key with null is an absent one."""

    data: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, data: object, where: str) -> "Fields":
        if not isinstance(data, Mapping):
            raise BundleError(where, f"expected an object, got {_kind(data)}")
        return cls(data, where)

    def path(self, key: str) -> str:
        return f"{self.where}: {key}"

    def get(self, key: str) -> Any:
        return self.data.get(key)

    def whole(self, key: str) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
            raise BundleError(self.path(key), f"expected a whole number, got {_kind(value)}")
        return value

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise BundleError(self.path(key), f"expected true or false, got {_kind(value)}")
        return bool(value)

    def text(self, key: str) -> str:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise BundleError(self.path(key), f"expected a text, got {_kind(value)}")
        return value or ""

    def inner(self, key: str) -> "Fields":
        value = self.get(key)
        return Fields.of({} if value is None else value, self.path(key))

    def lines(self, key: str) -> list[str]:
        return lines_of(self.get(key), self.path(key))

    def hosts(self, key: str) -> tuple[str, ...]:
        """A host list, or a list of them."""
        value = self.get(key)
        parts = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise BundleError(self.path(key), f"expected a host list, got {_kind(value)}")
        try:
            return tuple(dict.fromkeys(name for part in parts for name in hostlist.expand(part)))
        except ValueError as error:
            raise BundleError(self.path(key), str(error)) from None


def lines_of(value: object, where: str) -> list[str]:
    """Lines: a list of texts, or one text with line breaks. Null is none."""
    if value is None:
        return []
    if isinstance(value, str):
        return value.split("\n")
    if not isinstance(value, list):
        raise BundleError(where, f"expected lines, got {_kind(value)}")
    for i, line in enumerate(value):
        if not isinstance(line, str):
            raise BundleError(f"{where}[{i}]", f"expected a line, got {_kind(line)}")
    return value


def rank_nodes(value: object, where: str) -> dict[int, str]:
    """`{"0-7": "gn01", "8,9": "gn02"}`, or a list of nodes by rank."""
    if value is None:
        return {}
    if isinstance(value, list):
        value = {str(rank): node for rank, node in enumerate(value)}
    if not isinstance(value, Mapping):
        raise BundleError(where, f'expected an object such as {{"0-7": "gn01"}}, got {_kind(value)}')
    found: dict[int, str] = {}
    for ranks, node in value.items():
        if not isinstance(node, str):
            raise BundleError(f"{where}.{ranks}", f"expected a node name, got {_kind(node)}")
        found.update(dict.fromkeys(_ranks(str(ranks), where), node))
    return found


def _ranks(text: str, where: str) -> Iterable[int]:
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part, re.ASCII)
        if match is None:
            raise BundleError(where, f"{text[:40]!r} is no rank or range of ranks")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= MAX_RANKS:
            raise BundleError(where, f"{part[:40]!r} is no range of ranks below {MAX_RANKS}")
        yield from range(first, last + 1)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
