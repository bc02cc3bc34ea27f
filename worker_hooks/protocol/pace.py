"""How fast a rank goes, as its agent has learned it: the optional `pace` of a rank in a message.

Aggregates of one attempt, never points. Stalls are judged against them, so they are forgiving: what is not understood
in them is left out, and never refuses a message.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_S = 1e9
NUMBERS = ("step_median_s", "step_longest_s", "step_recent_s", "first_step_s", "phase_age_s")


@dataclass(frozen=True)
class PhasePace:
    """Stretches of one phase that are over. Seconds."""

    count: int
    median_s: float
    longest_s: float


@dataclass(frozen=True)
class Pace:
    """`steps`: how many the numbers rest on, the first one of the attempt apart (`first_step_s`: it compiles).
    `step_recent_s`: the median of the last few looks. `phase_age_s`: since the present phase began. Seconds; None:
    not known yet. `phases`: by name, those that are over."""

    steps: int = 0
    step_median_s: float | None = None
    step_longest_s: float | None = None
    step_recent_s: float | None = None
    first_step_s: float | None = None
    phase_age_s: float | None = None
    phases: Mapping[str, PhasePace] = field(default_factory=dict)


def encode_pace(pace: Pace) -> dict[str, Any]:
    """JSON builtins; what is not known is left out."""
    numbers = {name: round(value, 6) for name in NUMBERS if (value := getattr(pace, name)) is not None}
    phases = {
        name: {"count": p.count, "median_s": round(p.median_s, 6), "longest_s": round(p.longest_s, 6)}
        for name, p in pace.phases.items()
    }
    return {"steps": pace.steps, **numbers, **({"phases": phases} if phases else {})}


def decode_pace(data: object, phases: tuple[str, ...]) -> Pace | None:
    """`phases`: the names that are known. None for what is no pace at all."""
    if not isinstance(data, Mapping):
        return None
    told = data.get("phases")
    found = told if isinstance(told, Mapping) else {}
    return Pace(
        steps=_count(data.get("steps")),
        phases={name: pace for name in phases if (pace := _phase(found.get(name))) is not None},
        **{name: _seconds(data.get(name)) for name in NUMBERS},
    )


def _phase(data: object) -> PhasePace | None:
    if not isinstance(data, Mapping):
        return None
    count, middle, longest = _count(data.get("count")), _seconds(data.get("median_s")), _seconds(data.get("longest_s"))
    if not count or middle is None or longest is None:
        return None
    return PhasePace(count, middle, longest)


def _count(value: object) -> int:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return int(value) if fits else 0  # type: ignore[call-overload]


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 <= value <= LONGEST_S and math.isfinite(value) else None
