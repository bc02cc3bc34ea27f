"""What a run says of itself, and what of its records was not kept: columns and counts of its training job."""

from typing import Any

from controller.ingest.changes import Changes
from controller.models import TrainingJob

MAX_KINDS = 32


def count_lost(changes: Changes, signs: int) -> None:
    """Signs that were left out because there were too many of them."""
    if signs:
        changes.lost["signs"] = changes.lost.get("signs", 0) + signs


def save_facts(job: TrainingJob, changes: Changes) -> None:
    """`total_steps` and `gpus` have columns; the rest is kept as told, with counts of what was unknown or lost."""
    row = TrainingJob.objects.select_for_update(no_key=True).get(pk=job.pk)
    facts = dict(row.facts)
    facts.update({k: v for k, v in changes.run_facts.items() if k in facts or len(facts) < MAX_KINDS * 2})
    for name, counts in (("records_unknown", changes.unknown), ("records_lost", changes.lost)):
        if counts:
            facts[name] = _added(facts.get(name, {}), counts)
    row.facts = facts
    row.total_steps = _column(changes.run_facts.get("total_steps"), row.total_steps, (1 << 63) - 1)
    row.gpus = _column(changes.run_facts.get("gpus"), row.gpus, (1 << 31) - 1)
    row.save(update_fields=["facts", "total_steps", "gpus"])


def _added(known: dict[str, int], counts: dict[str, int]) -> dict[str, int]:
    total = dict(known)
    for what, count in counts.items():
        key = what if what in total or len(total) < MAX_KINDS else "other"
        total[key] = total.get(key, 0) + count
    return total


def _column(told: Any, known: int | None, most: int) -> int | None:
    fits = isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= most
    return told if fits else known
