"""What went wrong with the checkpoints of one attempt, for a person: storage that fails, a pointer that misleads, a run
that began from scratch although there was something to resume. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.models import Attempt
from worker_hooks.signs.storage import storage_reason

FROM_SCRATCH = "restarted_from_scratch"


@dataclass(frozen=True)
class Alarm:
    """`cause`: what the words say of storage (`storage.quota`), "" where they say nothing of it. `at`: the newest."""

    code: str
    cause: str
    count: int
    raw: str
    at: float | None


def of_attempt(attempt: Attempt, commits: Mapping[int, Iterable[tuple[int, float]]]) -> list[Alarm]:
    """The newest first. `commits`: (step, when) of the committed checkpoints of each generation of the job."""
    told = [
        Alarm(code, _cause(alarm["raw"]), alarm["count"], alarm["raw"], alarm["at"])
        for code, alarm in attempt.saving.get("alarms", {}).items()
    ]
    if all(alarm.code != FROM_SCRATCH for alarm in told) and (raw := _from_scratch(attempt, commits)):
        at = attempt.first_step_at.timestamp() if attempt.first_step_at is not None else None
        told.append(Alarm(FROM_SCRATCH, "", 1, raw, at))
    return sorted(told, key=lambda alarm: (-(alarm.at or 0.0), alarm.code))


def _cause(raw: str) -> str:
    found = storage_reason(raw)
    return found.code if found is not None else ""


def _from_scratch(attempt: Attempt, commits: Mapping[int, Iterable[tuple[int, float]]]) -> str:
    """Its first step was step 1, and an attempt before it had saved one beyond that."""
    if attempt.first_step_at is None or (attempt.start_step or 0) > 0:
        return ""
    before = [(step, number) for number, saved in commits.items() if number < attempt.generation for step, _ in saved]
    if not before:
        return ""
    step, number = max(before)
    return f"it began at step 0, although step {step} was committed in attempt {number}"
