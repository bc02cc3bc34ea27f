"""The running aggregate of an attempt's loss: small, kept with the attempt, folded over the points as they come in.

Only rank 0's loss is followed. Where any rank's loss or gradient norm is no number, the first step of it is kept.
"""

from collections.abc import Mapping
from typing import Any

from controller.decision.losses import fold, state_from_json, state_to_json
from controller.ingest.changes import Changes

WATCHED = frozenset({"loss", "grad_norm"})
WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
MAX_PLACES = 32


def note(changes: Changes, rank: int, body: Mapping[str, Any]) -> None:
    """What one metrics record says of losses. Its values are checked: numbers or WORDS."""
    name, steps, values = body["name"], body["steps"], body["values"]
    if name not in WATCHED:
        return
    if rank == 0 and name == "loss":
        changes.losses += [(step, WORDS.get(value) or float(value)) for step, value in zip(steps, values, strict=True)]
    bad = [step for step, value in zip(steps, values, strict=True) if value in WORDS]
    if bad:
        changes.not_finite.append((rank, name, min(bad)))


def merged(known: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """`{"state": of rank 0's loss, "not_finite": [{"rank", "name", "step"}]}`, each rank and name once."""
    state = fold(state_from_json(known.get("state", {})), sorted(changes.losses, key=lambda point: point[0]))
    places = list(known.get("not_finite", []))
    seen = {(place["rank"], place["name"]) for place in places}
    for rank, name, step in changes.not_finite:
        if (rank, name) not in seen and len(places) < MAX_PLACES:
            seen.add((rank, name))
            places.append({"rank": rank, "name": name, "step": step})
    return {"state": state_to_json(state), "not_finite": places}
