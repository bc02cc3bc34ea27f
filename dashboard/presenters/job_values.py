"""The six values under the headline, and where the wall clock went."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.decision.policy import Budget
from controller.queries.job import JobStory
from controller.queries.time_budget import KEPT, REPEATED, TimeBudget
from dashboard import formats
from dashboard.presenters.pace import Pace

TIME_TONES = {"kept": "kept", "repeated": "redo", "queue": "queue", "down": "down", "start": "start", "saving": "save"}


@dataclass(frozen=True)
class Value:
    label: str
    value: str
    note: str
    at: datetime | None = None


@dataclass(frozen=True)
class TimePart:
    words: str
    tone: str
    text: str
    share: str


def values_of(story: JobStory, pace: Pace, budget: Budget) -> list[Value]:
    job, time = story.job, story.budget
    loss, rate = story.loss, pace.steps_per_s
    spent, allowed = story.spent.infrastructure, budget.infrastructure
    kept = formats.units(time.units_of(KEPT), time.unit_s)
    return (
        [
            Value(
                "Loss, rank 0",
                formats.NONE if loss is None else formats.decimals(loss.value),
                "no step yet" if loss is None else f"at step {formats.whole(loss.step)}, attempt {loss.attempt}",
            ),
            Value(
                "Steps per second",
                formats.decimals(rate, 2) if rate is not None else formats.NONE,
                f"{formats.decimals(pace.step_s, 2)} s a step in this attempt" if pace.step_s else "not training",
            ),
            Value(
                "Kept time (ETTR)",
                formats.percent(time.ettr),
                f"{kept} of {formats.units(time.total, time.unit_s)}" if time.ettr is not None else "nothing kept yet",
            ),
            _finishes(story, pace),
            _if_failed(story, pace),
            Value(
                "Restarts left",
                f"{max(allowed - spent, 0)} of {allowed}",
                f"infrastructure; process {_left(story, budget)}",
            ),
        ]
        if job is not None
        else []
    )


def _left(story: JobStory, budget: Budget) -> str:
    left = f"{max(budget.process - story.spent.process, 0)} of {budget.process}"
    used = story.spent.time_limit
    return f"{left}; time limit {max(budget.time_limit - used, 0)} of {budget.time_limit}" if used else left


def _finishes(story: JobStory, pace: Pace) -> Value:
    job = story.job
    if job.ended_at is not None:
        return Value("Ended", formats.day_and_time(job.ended_at), formats.exact(job.ended_at), job.ended_at)
    if pace.finishes is None or job.step_at is None:
        total = "" if job.total_steps is None else f"of {formats.whole(job.total_steps)} steps"
        return Value("Finishes", formats.NONE, total or "length not told")
    left = (pace.finishes - job.step_at).total_seconds()
    return Value(
        "Finishes",
        formats.day_and_time(pace.finishes, job.step_at),
        f"in {formats.duration(left)}, at this ETTR",
        pace.finishes,
    )


def _if_failed(story: JobStory, pace: Pace) -> Value:
    """What would be made again, from the newest committed checkpoint on; fewer where no node is lost that has newer."""
    job, good = story.job, story.newest_good
    if job.step is None or job.ended_at is not None:
        return Value("If it failed now", formats.NONE, "not training" if job.ended_at is None else "it has ended")
    steps = max(job.step - (good.step if good else 0), 0)
    note = f"checkpoint {formats.whole(good.step)} is the newest" if good else "no committed checkpoint"
    if pace.step_s and job.gpus:
        hours = steps * pace.step_s * job.gpus / 3600
        note = f"{formats.decimals(hours, 1 if hours >= 1 else 3)} GPU-hours to repeat"
    on_nodes = max((c.step for c in story.checkpoints if c.on_nodes and c.state == "committed"), default=0)
    if on_nodes > (good.step if good else 0):
        note += f"; {formats.whole(max(job.step - on_nodes, 0))} if the nodes live"
    return Value("If it failed now", f"{formats.whole(steps)} step{'' if steps == 1 else 's'}", note)


def time_parts(budget: TimeBudget) -> list[TimePart]:
    return [
        TimePart(
            part.words,
            TIME_TONES.get(part.kind, "slow"),
            formats.units(part.units, budget.unit_s),
            formats.percent(part.units / budget.total, 2),
        )
        for part in budget.parts
        if budget.total
    ]


def time_json(story: JobStory) -> dict[str, Any] | None:
    budget = story.budget
    if not budget.parts:
        return None
    kept, rest = budget.units_of(KEPT), budget.total - budget.units_of(KEPT)
    total = formats.units(budget.total, budget.unit_s)
    lens = f"The {formats.percent(rest / budget.total)} that was not kept: {formats.units(rest, budget.unit_s)}"
    return {
        "left": formats.day_and_time(story.job.created_at, story.at),
        "right": f"{formats.day_and_time(story.at, story.at)}, {total} of wall clock",
        "lens": lens if kept and rest else "",
        "title": "Where the time went",
        "parts": [
            {
                "words": part.words,
                "text": formats.units(part.units, budget.unit_s),
                "value": part.units,
                "tone": TIME_TONES.get(part.kind, "slow"),
                "big": part.kind == KEPT and rest > 0,
                "hatch": part.kind == REPEATED,
            }
            for part in budget.parts
        ],
    }
