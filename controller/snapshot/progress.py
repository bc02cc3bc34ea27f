"""What agents say of their ranks' progress as facts, and what a training job has taught of its own pace."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median
from typing import Any

from controller.decision.attempt_facts import LearnedPace, RankProgress
from controller.decision.losses import NotFinite, state_from_json
from controller.decision.stall_limits import FIRST_STEP, LOADING, STARTUP, STEP
from controller.models import AgentReport, Attempt
from worker_hooks.protocol.messages import PHASES
from worker_hooks.protocol.pace import Pace, decode_pace

# A pace that rests on fewer steps of this attempt says less than the whole attempt before it.
ENOUGH_STEPS = 5
_KINDS = {"loading": LOADING, "warming_up": FIRST_STEP, "saving": "saving", "evaluation": "evaluation"}


def ranks(reports: Iterable[AgentReport]) -> tuple[RankProgress, ...]:
    """Every rank once, by its number, as of its agent's last word."""
    found = (_rank(report, told) for report in reports for told in report.ranks)
    return tuple(sorted(found, key=lambda rank: rank.rank))


def _rank(report: AgentReport, told: Mapping[str, Any]) -> RankProgress:
    heard = report.received_at.timestamp()
    return RankProgress(
        rank=told["rank"],
        node=report.node,
        state=told["state"],
        heard_at=heard,
        phase=told["phase"],
        step=told["step"],
        progressed_at=_before(heard, told["progress_age_s"]),
        beat_at=_before(heard, told["beat_age_s"]),
        exit_code=told["exit_code"],
        signal=told["signal"],
    )


def _before(heard: float, age_s: float | None) -> float | None:
    return None if age_s is None else heard - age_s


def saves(saving: Mapping[str, Any]) -> dict[str, Any]:
    """`saves_failed` of the facts, and why and since when."""
    row = saving.get("failing") or {"count": 0, "raw": "", "since": None}
    return {"saves_failed": row["count"], "saves_failed_why": row["raw"], "saves_failed_since": row["since"]}


def losses(kept: Mapping[str, Any]) -> dict[str, Any]:
    """`loss` and `not_finite` of the facts; the values themselves stay with the attempt."""
    if not kept:
        return {}
    state = replace(state_from_json(kept["state"]), recent=())
    return {"loss": state, "not_finite": tuple(NotFinite(**place) for place in kept["not_finite"])}


# --- what was learned ---------------------------------------------------------------------------------------------


def leaders_before(newest: Mapping[int, Sequence[Attempt]]) -> dict[int, AgentReport]:
    """By attempt: the leading agent's last word of the attempt before the newest one."""
    before = [attempts[-2].pk for attempts in newest.values() if len(attempts) > 1]
    reports = AgentReport.objects.filter(attempt__in=before, leader=True).only("attempt_id", "node", "ranks")
    return {report.attempt_id: report for report in reports}


def learned(
    attempts: Sequence[Attempt], reports: Iterable[AgentReport], before: AgentReport | None
) -> dict[str, LearnedPace]:
    """By kind of stretch. This attempt's own ranks teach first, then the leader of the one before; how long starts take
    is read from all attempts' stamps."""
    own, earlier = _of_ranks(reports), _of_ranks([before] if before is not None else [])
    stamped = _of_stamps(attempts)
    found: dict[str, LearnedPace] = {}
    for kind in sorted({*own, *earlier, *stamped}):
        known = [paces[kind] for paces in (own, earlier, stamped) if kind in paces]
        found[kind] = _joined(known, ENOUGH_STEPS if kind == STEP else 1)
    return found


def _joined(known: Sequence[LearnedPace], enough: int) -> LearnedPace:
    """The nearest that rests on enough speaks for what is usual; the longest of all is the longest."""
    usual = next((pace for pace in known if pace.count >= enough), known[0])
    return LearnedPace(usual.count, usual.median_s, max(pace.longest_s for pace in known), known[0].recent_s)


def _of_ranks(reports: Iterable[AgentReport]) -> dict[str, LearnedPace]:
    seen: dict[str, list[LearnedPace]] = {}
    for report in reports:
        for told in report.ranks:
            pace = decode_pace(told.get("pace"), PHASES)
            for kind, one in _of_pace(pace) if pace is not None else ():
                seen.setdefault(kind, []).append(one)
    return {kind: _over_ranks(paces) for kind, paces in seen.items()}


def _of_pace(pace: Pace) -> list[tuple[str, LearnedPace]]:
    found = [
        (_KINDS[name], LearnedPace(one.count, one.median_s, one.longest_s))
        for name, one in pace.phases.items()
        if name in _KINDS
    ]
    if pace.first_step_s is not None:
        found.append((FIRST_STEP, LearnedPace(1, pace.first_step_s, pace.first_step_s)))
    if pace.step_median_s is not None and pace.step_longest_s is not None:
        found.append((STEP, LearnedPace(pace.steps, pace.step_median_s, pace.step_longest_s, pace.step_recent_s)))
    return found


def _over_ranks(paces: Sequence[LearnedPace]) -> LearnedPace:
    recent = [pace.recent_s for pace in paces if pace.recent_s is not None]
    return LearnedPace(
        count=max(pace.count for pace in paces),
        median_s=median(pace.median_s for pace in paces),
        longest_s=max(pace.longest_s for pace in paces),
        recent_s=median(recent) if recent else None,
    )


def _of_stamps(attempts: Iterable[Attempt]) -> dict[str, LearnedPace]:
    seen: dict[str, list[float]] = {}
    for attempt in attempts:
        ready = attempt.warmed_up_at or attempt.loaded_at or attempt.rendezvous_at
        _note(seen, STARTUP, attempt.launched_at, attempt.rendezvous_at or attempt.loaded_at)
        _note(seen, LOADING, attempt.rendezvous_at, attempt.loaded_at)
        _note(seen, FIRST_STEP, ready, attempt.first_step_at)
    return {kind: LearnedPace(len(s), median(s), max(s)) for kind, s in seen.items()}


def _note(seen: dict[str, list[float]], kind: str, start: datetime | None, end: datetime | None) -> None:
    if start is not None and end is not None and end >= start:
        seen.setdefault(kind, []).append((end - start).total_seconds())
