"""How fast a training job goes, when it will be done, and what a failure would cost now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.models import Attempt, TrainingJob


@dataclass(frozen=True)
class Pace:
    """`step_s`: seconds of a step in the present attempt, first step and saves included. None: not known."""

    step_s: float | None
    finishes: datetime | None

    @property
    def steps_per_s(self) -> float | None:
        return None if not self.step_s else 1 / self.step_s


def pace_of(job: TrainingJob, attempt: Attempt | None, ettr: float | None) -> Pace:
    """The rate is that of the attempt so far; what is left takes that rate, at the share of time kept until now."""
    step_s = _step_s(attempt)
    if job.state not in ("training", "verifying") or step_s is None:
        return Pace(step_s if job.state in ("training", "verifying") else None, None)
    if job.total_steps is None or job.step is None or job.step_at is None or not ettr:
        return Pace(step_s, None)
    left = max(job.total_steps - job.step, 0)
    try:
        return Pace(step_s, job.step_at + timedelta(seconds=left * step_s / ettr))
    except OverflowError:
        return Pace(step_s, None)


def _step_s(attempt: Attempt | None) -> float | None:
    if attempt is None or attempt.step is None or attempt.step_at is None or attempt.first_step_at is None:
        return None
    made = attempt.step - (attempt.start_step or 0) - 1
    took = (attempt.step_at - attempt.first_step_at).total_seconds()
    return took / made if made > 0 and took > 0 else None
