"""What the chart of a training job needs, as plain JSON values (never NaN), and the tag that says what is new."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from controller.models import Attempt, Incident, Recovery, TrainingJob
from controller.queries import curve as pure
from controller.queries.curve import Curve, Series, Trace
from controller.queries.phases import TENTHS, phases_of
from controller.queries.series import part, ranks_and_names, series_of, stamp_of

CLOSE_UP_BINS = 160
CLOSE_UPS = 8


@dataclass(frozen=True)
class Asked:
    """Which curve: a metric of a rank, all steps or only first..last."""

    name: str = "loss"
    rank: int = 0
    first: int | None = None
    last: int | None = None


def tag(job: TrainingJob, asked: Asked) -> str:
    """Changes when a point, an attempt or the story of a restart changes."""
    attempts = [
        (a.generation, a.start_step, a.state, a.outcome, a.step, str(a.first_new_step_at)) for a in _attempts(job)
    ]
    recoveries = list(job.recoveries.order_by("pk").values_list("pk", "rpo_steps", "rpo_gpu_hours", "verification"))
    incidents = list(job.incidents.order_by("pk").values_list("pk", "summary", "state"))
    seen = (asked, stamp_of(job, asked.name, asked.rank), attempts, recoveries, incidents)
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:32]


def payload(job: TrainingJob, asked: Asked) -> dict[str, Any]:
    """Traces by attempt, restart marks, close-ups of each repeat, and what was not a number."""
    attempts = _attempts(job)
    whole = series_of(job, attempts, asked.name, asked.rank)
    firsts = {s.attempt: s.steps[0] for s in whole if s.steps}
    ranged = asked.first is not None or asked.last is not None
    shown = [part(s, asked.first, asked.last) for s in whole] if ranged else whole
    curve = pure.build(shown, firsts)
    marks = _marks(job, attempts, whole)
    return {
        "name": asked.name,
        "rank": asked.rank,
        "width": curve.width,
        "traces": [_trace(t) for t in curve.traces],
        "not_finite": [vars(n) for n in curve.not_finite],
        "not_finite_total": curve.not_finite_total,
        "restarts": marks,
        "close_ups": [] if ranged else [_close_up(m, whole) for m in marks[-CLOSE_UPS:] if m["fault_step"] is not None],
        "latest": _latest(curve),
        "lowest": _lowest(curve),
        "total_steps": job.total_steps,
        "choices": [{"name": n, "rank": r} for n, r in ranks_and_names(job)],
    }


def _attempts(job: TrainingJob) -> list[Attempt]:
    return list(job.attempts.defer("checks", "log_tail", "exits").order_by("generation"))


def _trace(trace: Trace) -> dict[str, Any]:
    points = trace.points
    return {
        "attempt": trace.attempt,
        "kept": trace.kept,
        "steps": [p.step for p in points],
        "times": [round(p.time, 3) for p in points],
        "y": [p.y for p in points],
        "low": [_short(p.low) for p in points],
        "high": [_short(p.high) for p in points],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.9g}")


def _latest(curve: Curve) -> dict[str, Any] | None:
    found = pure.latest(curve)
    return None if found is None else dict(zip(("attempt", "step", "value"), found, strict=True))


def _lowest(curve: Curve) -> float | None:
    lows = [p.low for t in curve.traces if t.kept for p in t.points if p.low is not None]
    return min(lows, default=None)


def _marks(job: TrainingJob, attempts: list[Attempt], whole: list[Series]) -> list[dict[str, Any]]:
    """One mark for each attempt after the first: where it took over, how far the one before had come, why, what for."""
    recoveries = {
        r.to_attempt_id: r for r in Recovery.objects.filter(training_job=job).select_related("incident").order_by("pk")
    }
    hit = {i.attempt_id: i for i in job.incidents.order_by("detected_at", "pk")}
    marks = []
    for k, attempt in enumerate(attempts[1:], start=1):
        recovery = recoveries.get(attempt.pk)
        incident = recovery.incident if recovery is not None else hit.get(attempts[k - 1].pk)
        marks.append(_mark(attempt, attempts[k - 1], whole, recovery, incident))
    return marks


def _mark(
    attempt: Attempt, before: Attempt, whole: list[Series], recovery: Recovery | None, incident: Incident | None
) -> dict[str, Any]:
    mine = next(s for s in whole if s.attempt == attempt.generation)
    older = [s.steps[-1] for s in whole if s.attempt == before.generation and s.steps]
    at = attempt.start_step if attempt.start_step is not None else (mine.steps[0] if mine.steps else None)
    reached = max([*older, *([before.step] if before.step is not None else [])], default=None)
    repeated = recovery.rpo_steps if recovery is not None else None
    if repeated is None and at is not None and reached is not None:
        repeated = max(reached - at, 0)
    began = attempt.first_step_at or attempt.launched_at or attempt.created_at
    return {
        "attempt": attempt.generation,
        "before": before.generation,
        "at": at,
        "at_time": mine.times[0] if mine.times else began.timestamp(),
        "until_time": None if attempt.first_new_step_at is None else attempt.first_new_step_at.timestamp(),
        "fault_step": reached if at is not None and reached is not None and reached > at else None,
        "cause": incident.summary if incident is not None else (before.outcome_reason or "Restarted"),
        "incident": incident.pk if incident is not None else None,
        "repeated": repeated,
        "gpu_hours": recovery.rpo_gpu_hours or None if recovery is not None else None,
        "to_new_step_s": _to_new_step(recovery),
    }


def _to_new_step(recovery: Recovery | None) -> float | None:
    if recovery is None:
        return None
    total = phases_of(recovery.stamps).total
    return None if total is None else total / TENTHS


def _close_up(mark: dict[str, Any], whole: list[Series]) -> dict[str, Any]:
    """The steps around one repeat, the old line and the new one apart."""
    at, fault = mark["at"], mark["fault_step"]
    margin = max((fault - at) * 6 // 10, 4)
    first, last = max(at - margin, 0), fault + margin
    width = pure.bin_width(first, last, CLOSE_UP_BINS)
    lines = {}
    for name, attempt in (("old", mark["before"]), ("new", mark["attempt"])):
        one = next(s for s in whole if s.attempt == attempt)
        lines[name] = _line(part(one, first, last), width)
    known = {key: mark[key] for key in ("attempt", "before", "at")}
    return {**known, "fault": fault, "first": first, "last": last, **lines}


def _line(one: Series, width: int) -> list[list[float]]:
    """Bin means as [step, value]; what is not a number is left out, the curve shows it."""
    bins: dict[int, list[tuple[int, float]]] = {}
    for step, value in zip(one.steps, one.values, strict=True):
        if math.isfinite(value):
            bins.setdefault(step // width, []).append((step, value))
    return [[b[len(b) // 2][0], _short(math.fsum(v / len(b) for _, v in b))] for b in bins.values()]  # type: ignore[list-item]
