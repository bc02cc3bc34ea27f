"""What earlier incidents rested on, out of rows: the memory of a job's own attempts, and of the nodes it is on.

A node's memory ends where it was put back into service, or its hardware was changed: what was said before is settled.
Bounded, with a fixed number of queries.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Max, QuerySet, Window
from django.db.models.functions import RowNumber

from controller.clock import aware
from controller.decision.evidence import CONTROLLER, Evidence
from controller.models import Attempt, Cluster, Incident, NodeEvent, NodeHold, NodeSensor, Sign, TrainingJob
from controller.models import Evidence as ProofLine
from controller.snapshot.signs import evidence as sign_evidence

# Earlier attempts of a job whose proof lines are remembered, and lines of one incident.
MOST_ATTEMPTS = 5
MOST_LINES = 20
MOST_INCIDENTS = 500
SIGN = "sign:"


@dataclass
class Memory:
    """`incidents`: of the cluster within the window, that accused a node that facts are made of; newest first.
    `proof`: their accusing lines, oldest number first, by incident. `of_attempts`: the newest incident of an earlier
    attempt. `settled`: by node, when it was last put back into service or was other hardware."""

    incidents: list[Incident] = field(default_factory=list)
    proof: dict[int, list[Evidence]] = field(default_factory=dict)
    of_attempts: dict[int, Incident] = field(default_factory=dict)
    settled: dict[str, float] = field(default_factory=dict)

    def verdict(self, attempt: Attempt) -> str:
        """How the fault that ended it was judged; "" unknown."""
        incident = self.of_attempts.get(attempt.pk)
        return verdict_of(incident) if incident is not None else ""

    def lines(self, attempt: Attempt) -> tuple[Evidence, ...]:
        incident = self.of_attempts.get(attempt.pk)
        return tuple(self.proof.get(incident.pk, ())) if incident is not None else ()


def verdict_of(incident: Incident) -> str:
    return str(incident.assessment.get("verdict") or incident.cause)


def accused(incident: Incident) -> set[str]:
    """Nodes that it suspected, kept away from, or asked to be watched. Where many nodes failed at once none is."""
    said = incident.assessment
    return {*incident.suspects, *said.get("exclude", ()), *said.get("withheld", ()), *said.get("node_actions", {})}


def earlier(attempts: Mapping[int, list[Attempt]]) -> list[Attempt]:
    """By training job, oldest first -> those whose proof is remembered."""
    return [attempt for each in attempts.values() for attempt in each[:-1][-MOST_ATTEMPTS:]]


def read(
    cluster: Cluster,
    jobs: Collection[TrainingJob],
    attempts: Mapping[int, list[Attempt]],
    names: Collection[str],
    sensors: Mapping[str, NodeSensor],
    since: float,
) -> Memory:
    """`attempts`: by training job, oldest first. `names`: nodes that facts are made of. `since`: how far a node's
    memory goes back; that of a job's own attempts goes back as far as they do."""
    memory = Memory(settled=_settled(cluster, since))
    recent = Incident.objects.filter(cluster=cluster, detected_at__gt=aware(since)).select_related("training_job")
    newest = recent.order_by("-detected_at", "-pk")[:MOST_INCIDENTS]
    memory.incidents = [incident for incident in newest if accused(incident) & set(names)]
    own = Incident.objects.filter(training_job__in=list(jobs), attempt__in=earlier(attempts))
    memory.of_attempts = {i.attempt_id: i for i in own.select_related("training_job").order_by("pk") if i.attempt_id}
    wanted = {i.pk: i for i in (*memory.incidents, *memory.of_attempts.values())}
    rows = list(_proof_lines(wanted))
    signs = Sign.objects.in_bulk([number for row in rows if (number := _sign_number(row)) is not None])
    for row in rows:
        run_id = wanted[row.incident_id].training_job.run_id
        memory.proof.setdefault(row.incident_id, []).append(_piece(row, signs, sensors, run_id))
    return memory


def _proof_lines(incidents: Iterable[int]) -> QuerySet[ProofLine]:
    place = Window(RowNumber(), partition_by=F("incident"), order_by=F("number").asc())
    lines = ProofLine.objects.filter(incident__in=list(incidents), stance="accuses")
    return lines.annotate(place=place).filter(place__lte=MOST_LINES).order_by("incident_id", "number")


def _sign_number(row: ProofLine) -> int | None:
    number = row.ref.removeprefix(SIGN)
    return int(number) if row.ref.startswith(SIGN) and number.isdecimal() else None


def _piece(row: ProofLine, signs: Mapping[int, Sign], sensors: Mapping[str, NodeSensor], run_id: str) -> Evidence:
    """The sign as it was weighed then; where that is forgotten, or it never was one, what the incident kept of it."""
    number = _sign_number(row)
    sign = signs.get(number) if number is not None else None
    if sign is not None and (sign.code, sign.node) == (row.code, row.node):
        return sign_evidence(sign, sensors.get(sign.node), run_id)
    kept: dict[str, Any] = {"node": row.node or None, "rank": row.rank, "count": row.count, "job": run_id}
    at = row.observed_at.timestamp()
    origin = row.origin or CONTROLLER
    return Evidence(f"proof:{row.pk}", row.code, row.layer, row.source, origin, row.raw, at, **kept)


def _settled(cluster: Cluster, since: float) -> dict[str, float]:
    ended = NodeHold.objects.filter(node__cluster=cluster, ended_at__gt=aware(since))
    changed = NodeEvent.objects.filter(node__cluster=cluster, kind="swapped", at__gt=aware(since))
    found = dict(ended.values_list("node__name").annotate(newest=Max("ended_at")).order_by())
    for name, at in changed.values_list("node__name").annotate(newest=Max("at")).order_by():
        found[name] = max(found.get(name, at), at)
    return {name: at.timestamp() for name, at in found.items()}
