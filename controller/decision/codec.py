"""Stored facts back to values, so that a Decision row can be replayed by today's code."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from controller.decision.facts import ClusterFacts, SubjectFacts


def subject_from_json(data: Mapping[str, Any]) -> SubjectFacts:
    """Inverse of `SubjectFacts.to_json`. Unknown keys are ignored; missing ones take their defaults."""
    subject: SubjectFacts = _build(SubjectFacts, data)
    return subject


def cluster_from_json(data: Mapping[str, Any]) -> ClusterFacts:
    cluster: ClusterFacts = _build(ClusterFacts, data)
    return cluster


def _build(kind: Any, value: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        inner = next(arg for arg in args if arg is not NoneType)
        return None if value is None else _build(inner, value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: _build(hints[f.name], value[f.name]) for f in fields(kind) if f.name in value})
    if origin is tuple:
        return tuple(_build(args[0], item) for item in value)
    if origin is frozenset:
        return frozenset(value)
    if origin is not None and isinstance(value, Mapping):
        # JSON has texts for keys: a rank's number comes back as one.
        return {int(key) if args[0] is int else key: _build(args[1], item) for key, item in value.items()}
    return value
