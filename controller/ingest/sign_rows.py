"""Signs into rows, each once and never too many: the hardest and newest stay, how many went is counted.

Called inside the message's transaction, with the reporter's row locked.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from controller.ingest.signs import SignNote
from controller.models import Attempt, NodeSensor, Sign, TrainingJob

# A sensor's memory of a week, and what one agent may say of one attempt: more is a flood, not news.
MOST_OF_A_SENSOR = 2000
MOST_OF_AN_AGENT = 500
MOST_OF_AN_ATTEMPT = 20000


def of_sensor(sensor: NodeSensor, stream: str, notes: Sequence[SignNote], now: datetime) -> int:
    """How many were left out. Whatever a record says of its node: a sensor speaks for its own."""
    kept = _hardest(notes, MOST_OF_A_SENSOR)
    common = {"cluster_id": sensor.cluster_id, "origin": "sensor", "sensor": sensor, "reporter": sensor.node}
    _write(_row(note, now, **common, stream=stream, node=sensor.node) for note in kept)
    return len(notes) - len(kept) + _evict(Sign.objects.filter(sensor=sensor), MOST_OF_A_SENSOR)


def of_agent(job: TrainingJob, attempt: Attempt, reporter: str, notes: Sequence[SignNote], now: datetime) -> int:
    """How many were left out. A line may name another node of the same attempt as its own (rank 0 prints for all);
    any other name is a stranger's, and the sign stays with the node that reported it."""
    kept = _hardest(notes, MOST_OF_AN_AGENT)
    names = {name.split(".")[0]: name for name in attempt.nodes}
    common = {"cluster_id": job.cluster_id, "origin": "job", "attempt": attempt, "reporter": reporter}
    _write(_row(note, now, **common, node=names.get(note.node.split(".")[0], reporter)) for note in kept)
    own = _evict(Sign.objects.filter(attempt=attempt, reporter=reporter), MOST_OF_AN_AGENT)
    return len(notes) - len(kept) + own + _evict(Sign.objects.filter(attempt=attempt), MOST_OF_AN_ATTEMPT)


def _hardest(notes: Sequence[SignNote], most: int) -> list[SignNote]:
    return sorted(notes, key=lambda note: (note.order, -note.at.timestamp()))[:most]


def _row(note: SignNote, now: datetime, **place: Any) -> Sign:
    return Sign(
        **place,
        seq=note.seq,
        rank=note.rank,
        code=note.code,
        layer=note.layer,
        source=note.source,
        raw=note.raw,
        attrs=dict(note.attrs),
        count=note.count,
        order=note.order,
        observed_at=note.at,
        last_at=note.last_at,
        received_at=now,
    )


def _write(rows: Iterable[Sign]) -> None:
    """A record that is there already (a stream that was forgotten and came again) is not written twice."""
    Sign.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)


def _evict(rows: QuerySet[Sign], most: int) -> int:
    """Removes the softest and oldest beyond `most`."""
    beyond = rows.count() - most
    if beyond <= 0:
        return 0
    softest = list(rows.order_by("-order", "observed_at").values_list("pk", flat=True)[:beyond])
    Sign.objects.filter(pk__in=softest).delete()
    return len(softest)
