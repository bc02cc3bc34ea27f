"""Ranks that are slower than their equals, as evidence: it opens nothing by itself and holds nobody. Pure.

Each rank tells what its own work took in a step, without its waits for others (`compute_s`), and what its role is. One
that told no role is compared only where no rank has one: plain data parallelism, in which all do the same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from controller.decision.attempt_facts import AttemptFact
from controller.decision.evidence import JOB, Evidence
from controller.decision.stragglers import Margins, Straggler, Timing, compare

STEPS = 32
MOST_RANKS_OF_A_NODE = 64
MOST_RANKS = 4096
MOST_NAMED = 16
# A live window is short, and a run's first steps are like no others.
MARGINS = Margins(steps=8)


@dataclass(frozen=True)
class Window:
    """One rank's last steps. `role`: "" unknown. `seconds`: by step."""

    role: str = ""
    seconds: Mapping[int, float] = field(default_factory=dict)


def evidence(run_id: str, attempt: AttemptFact) -> tuple[Evidence, ...]:
    """The slowest first. The same windows always give the same pieces, with the same ids."""
    return tuple(_piece(run_id, found) for found in _stragglers(attempt.work)[:MOST_NAMED])


def read_windows(text: str) -> dict[int, Window]:
    """By rank. Raises ValueError, KeyError or TypeError for what `write_windows` did not make."""
    found: dict[str, Any] = json.loads(text) if text else {}
    return {
        int(rank): Window(one["role"], dict(zip(one["steps"], one["seconds"], strict=True)))
        for rank, one in found.items()
    }


def write_windows(windows: Mapping[int, Window]) -> dict[str, Any]:
    """Builtins for JSON, the inverse of `read_windows`."""
    return {
        str(rank): {"role": w.role, "steps": list(w.seconds), "seconds": list(w.seconds.values())}
        for rank, w in sorted(windows.items())
    }


@lru_cache(maxsize=16)
def _stragglers(texts: tuple[str, ...]) -> tuple[Straggler, ...]:
    """Kept: in observe mode the same fault is judged at every sweep."""
    windows = dict(list(_all(texts))[:MOST_RANKS])
    if any(window.role for window in windows.values()):
        windows = {rank: window for rank, window in windows.items() if window.role}
    return compare(_timings(windows), MARGINS).stragglers


def _all(texts: Iterable[str]) -> Iterator[tuple[int, Window]]:
    """A text that cannot be read says nothing."""
    for text in texts:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            yield from read_windows(text).items()


def _timings(windows: Mapping[int, Window]) -> Iterator[Timing]:
    for rank, window in windows.items():
        for step, seconds in window.seconds.items():
            yield Timing(rank, window.role, "compute", step, seconds)


def _piece(run_id: str, found: Straggler) -> Evidence:
    role = f" ({found.role})" if found.role else ""
    raw = (
        f"rank {found.worker}{role} takes {found.slowdown:.2g} times as long as its equals for its own work, "
        f"in {found.share:.0%} of the last steps"
    )
    return Evidence(
        id=f"progress:straggler:{found.worker}",
        code="progress.straggler",
        layer="progress",
        source="progress",
        origin=JOB,
        raw=raw,
        rank=found.worker,
        attrs={"role": found.role, "slowdown": round(found.slowdown, 2)},
        job=run_id,
    )
