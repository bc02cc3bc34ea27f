"""How often a training job saves, what that is expected to cost, and what would cost least."""

from __future__ import annotations

from typing import Any

from controller.decision.interval import DAY_S
from controller.queries.job import JobStory
from dashboard import formats

HOUR_S = 3600.0


def advice(story: JobStory) -> str:
    """One sentence, or "" before a save was measured or after the end."""
    saving: dict[str, Any] = story.job.saving
    if not saving or story.job.ended_at is not None:
        return ""
    best = (
        f"saving every {formats.duration(saving['interval_s'])} would lose {formats.percent(saving['lost_share'], 2)}"
        f" of the time (a save blocks {formats.decimals(saving['cost_s'], 2)} s; one failure in "
        f"{_span(saving['mtbf_s'])} is expected)"
    )
    if saving["present_s"] is None:
        return f"{best[0].upper()}{best[1:]}."
    now = f"Saves every {formats.duration(saving['present_s'])}: {formats.percent(saving['present_lost_share'], 2)}"
    return f"{now} of the time is expected to be lost; {best}."


def may_save(story: JobStory) -> bool:
    """There is a step to save at."""
    return story.job.state in ("training", "verifying") and bool(story.reports)


def asked(story: JobStory) -> bool:
    """A save was asked for, and none that was committed since is there yet."""
    at = story.job.save_asked_at
    return at is not None and may_save(story) and all(c.on_nodes or c.committed_at <= at for c in story.checkpoints)


def _span(seconds: float) -> str:
    if seconds >= 2 * DAY_S:
        return f"{formats.whole(round(seconds / DAY_S))} days"
    return f"{formats.decimals(seconds / HOUR_S, 1)} hours"
