"""The list of training jobs as rows of words and small pictures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controller.models import TrainingJob
from controller.queries.jobs import Row
from controller.queries.sparks import Spark
from controller.queries.time_budget import TimeBudget
from dashboard import formats, words
from dashboard.presenters.pace import pace_of
from dashboard.words import Word

SPARK_WIDTH, SPARK_HEIGHT = 168.0, 30.0


@dataclass(frozen=True)
class SparkLine:
    """`lines`: (colour number, SVG path); `ticks`: (colour number, x) of each restart."""

    lines: list[tuple[int, str]]
    ticks: list[tuple[int, str]]
    label: str


@dataclass(frozen=True)
class JobRow:
    job: TrainingJob
    word: Word
    detail: str
    share: str
    spark: SparkLine | None
    restarts: str
    ettr: str
    ettr_share: str
    ettr_low: bool
    rate: str
    finishes: datetime | None
    shape: str
    ended: bool

    @property
    def name(self) -> str:
        return self.job.name or "training job"

    @property
    def updated(self) -> datetime:
        """The newest word on the job: its last step, or its last change of state."""
        return max(self.job.state_at, self.job.step_at or self.job.state_at)


def job_row(row: Row) -> JobRow:
    job, attempt = row.job, row.attempt
    ettr = row.budget.ettr
    pace = pace_of(job, attempt, ettr)
    rate = pace.steps_per_s
    return JobRow(
        job=job,
        word=words.of_job(job.state, row.incident.cause if row.incident else None),
        detail=_detail(row),
        share=_share(job.step, job.total_steps),
        spark=_spark(row.spark),
        restarts=str(row.restarts) if row.attempts else formats.NONE,
        ettr=formats.percent(ettr),
        ettr_share=f"{(ettr or 0) * 100:.1f}%",
        ettr_low=ettr is not None and ettr < 0.8,
        rate=formats.NONE if rate is None else f"{formats.decimals(rate, 2)} steps",
        finishes=pace.finishes,
        shape=_shape(job, len(attempt.nodes) if attempt else 0),
        ended=job.state in ("finished", "cancelled"),
    )


def need(row: Row) -> tuple[JobRow, str]:
    """A line of the strip: the job, and what is asked of its owner."""
    ask = row.incident.ask if row.incident and row.incident.ask else row.job.state_reason
    return job_row(row), ask or "a person must look"


def _detail(row: Row) -> str:
    job, attempt, incident = row.job, row.attempt, row.incident
    if job.state == "queued":
        reason = str(job.view.get("reason") or "")
        return reason if reason not in ("", "None") else "Waiting for Slurm"
    if job.state == "stopped":
        return (incident.summary if incident else "") or job.state_reason
    if job.state in ("recovering", "verifying") and incident is not None:
        return incident.summary
    if job.state == "finished":
        return _finished(row.budget, row.restarts)
    if job.state == "training" and attempt is not None:
        return f"Attempt {attempt.generation}" if row.restarts else "No restart"
    return job.state_reason


def _finished(budget: TimeBudget, restarts: int) -> str:
    took = formats.duration(budget.total * budget.unit_s)
    return f"In {took}, " + ("no restart" if not restarts else f"{restarts} restart{'s' if restarts > 1 else ''}")


def _share(step: int | None, total: int | None) -> str:
    if not step or not total:
        return "0%"
    return f"{min(step / total, 1) * 100:.1f}%"


def _shape(job: TrainingJob, nodes: int) -> str:
    if not nodes:
        return formats.NONE
    if job.gpus is not None and job.gpus % nodes == 0:
        return f"{nodes} × {job.gpus // nodes}"
    return f"{nodes} × {formats.NONE}"


def _spark(spark: Spark | None) -> SparkLine | None:
    """The start of a training is far above the rest: the top is cut at the upper tenth of what is left."""
    if spark is None or not spark.lines:
        return None
    values = sorted(v for _, line in spark.lines for _, v in line)
    low, high = values[0], values[int((len(values) - 1) * 0.93)]
    span = (high - low) or 1.0
    scale = (SPARK_WIDTH - 2) / max(spark.last_step, 1)
    lines = []
    before: list[tuple[int, float]] = []
    for attempt, own in spark.lines:
        # The line goes on from the last kept point: only its colour changes.
        line, before = before + own, own[-1:]
        joined = [
            f"{step * scale:.1f} {2 + (1 - (min(v, high) - low) / span) * (SPARK_HEIGHT - 9):.1f}" for step, v in line
        ]
        lines.append(((attempt - 1) % 6 + 1, "M" + "L".join(joined if len(joined) > 1 else joined * 2)))
    ticks = [((n - 1) % 6 + 1, f"{step * scale:.1f}") for n, step in spark.restarts]
    last = spark.lines[-1][1][-1]
    label = f"Loss {formats.decimals(last[1])} at step {formats.whole(last[0])}, {len(spark.restarts)} restarts"
    return SparkLine(lines, ticks, label)
