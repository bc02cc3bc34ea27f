"""Saves that somebody asked for (a signal before the end, a stop request, "save now"), and whether they came in time.

Such a save may come too late, so it is counted; periodic saves are what a run relies on. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AskedSaves:
    """`left_s`: from the last such commit to the end of the attempt. `short_s`: from the last ask that came to nothing
    to the end. None where there is none, or the attempt has not ended."""

    asked: int
    committed: int
    left_s: float | None
    short_s: float | None


def fold(saving: Mapping[str, Any], committed: Iterable[tuple[int, float]], ended_at: float | None) -> AskedSaves:
    """`saving` as `ingest.saves` keeps it; `committed`: (step, when) of the attempt's own committed checkpoints."""
    commits = dict(committed)
    begun = [(item["at"], commits[item["step"]]) for item in saving.get("begun", ()) if item.get("step") in commits]
    asks = [float(item["at"]) for item in saving.get("asked", ())]
    answers = [next((done for at, done in sorted(begun) if done >= ask), None) for ask in asks]
    in_vain = [ask for ask, answer in zip(asks, answers, strict=True) if answer is None]
    kept = [answer for answer in answers if answer is not None]
    return AskedSaves(
        asked=len(asks),
        committed=len(kept),
        left_s=max(ended_at - max(kept), 0.0) if ended_at is not None and kept else None,
        short_s=max(ended_at - max(in_vain), 0.0) if ended_at is not None and in_vain else None,
    )
