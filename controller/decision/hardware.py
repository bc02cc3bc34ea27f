"""Is it the same machine? Compares what is known of the hardware behind a node name. Pure.

Facts are lists by kind: `serials` and `instance` (given once to a machine), `gpus` and `network` (parts, which can be
replaced or moved), `system` (the installation: supports a doubt, never proves anything by itself: images are copied,
containers share their host's). Crying swap for a detail of a container would mark true holds as stale, so little
knowledge is `unknown`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Facts = Mapping[str, list[str]]

GIVEN = ("serials", "instance")
PARTS = ("gpus", "network")
SUPPORT = ("system",)
WORDS = {
    "serials": "serial numbers",
    "instance": "instance ids",
    "gpus": "GPUs",
    "network": "network cards",
    "system": "installations",
}


@dataclass(frozen=True)
class Likeness:
    """`differs`: the kinds of which nothing agrees, in words; parts that were replaced when the machine is the same."""

    verdict: Literal["same", "other", "unknown"]
    differs: tuple[str, ...] = ()


def compare(known: Facts, seen: Facts) -> Likeness:
    """Kinds that either side does not know say nothing. One thing in common is agreement: a container may show only
    its own GPUs."""
    both = [kind for kind in (*GIVEN, *PARTS) if known.get(kind) and seen.get(kind)]
    same = [kind for kind in both if set(known[kind]) & set(seen[kind])]
    other = [kind for kind in both if kind not in same]
    differs = tuple(WORDS[kind] for kind in other)
    if any(kind in GIVEN for kind in same):
        return Likeness("same", differs)
    if any(kind in GIVEN for kind in other):
        # A moved part under another serial number: neither the old machine nor quite a new one.
        return Likeness("unknown" if same else "other", differs)
    if same:
        return Likeness("same", differs)
    votes = len(other) + (1 if other and _differs(known, seen, SUPPORT) else 0)
    return Likeness("other" if votes >= 2 else "unknown", differs)


def _differs(known: Facts, seen: Facts, kinds: Iterable[str]) -> bool:
    return any(known.get(kind) and seen.get(kind) and not set(known[kind]) & set(seen[kind]) for kind in kinds)


def identified(facts: Facts) -> bool:
    """Enough to recognise the machine again."""
    return any(facts.get(kind) for kind in (*GIVEN, *PARTS))


def merged(known: Facts, seen: Facts) -> dict[str, list[str]]:
    """Of one machine: a replaced part takes the old one's place; a narrower sight (a container's) changes nothing."""
    facts = {kind: list(values) for kind, values in known.items()}
    for kind, values in seen.items():
        if values and not set(values) <= set(facts.get(kind, [])):
            facts[kind] = sorted(values)
    return facts
