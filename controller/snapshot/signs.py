"""Signs out of rows: what was said about a training job's newest attempt, and about the nodes that it is on.

Bounded for each attempt and each node, hardest and newest first, with a fixed number of queries.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Max, QuerySet, Window
from django.db.models.functions import RowNumber

from controller.clock import aware
from controller.decision.evidence import JOB, SENSOR, Evidence
from controller.decision.facts import PastFault
from controller.decision.findings import NOT_FINITE
from controller.decision.progress_evidence import SOURCE
from controller.models import AgentReport, Attempt, Cluster, Incident, NodeHold, NodeSensor, Sign, TrainingJob
from controller.models import Evidence as Told

MOST_OF_A_JOB = 200
MOST_OF_A_NODE = 40
MOST_OF_A_SUBJECT = 600
MOST_INCIDENTS = 500
# A fault of the hardware is often on record before the job that dies of it has begun.
BEFORE_S = 60.0
# A sensor reports every few seconds, also when there is nothing to say.
SENSOR_FRESH_S = 60.0
READ = "ok"


@dataclass
class SignRows:
    """`order`: by evidence id, the weight that its code had on arrival. `answered`: by node, when a hold of it or an
    incident that suspects it was last made. `recent`: incidents of the cluster within memory, newest first. `faults`:
    the newest one of each training job."""

    of_jobs: dict[int, list[Evidence]] = field(default_factory=dict)
    of_nodes: dict[str, list[Evidence]] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    sensors: dict[str, NodeSensor] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    recent: list[Incident] = field(default_factory=list)
    faults: dict[int, PastFault] = field(default_factory=dict)

    def keep(self, kept: list[Evidence], sign: Sign, run_id: str = "") -> None:
        piece = evidence(sign, self.sensors.get(sign.node), run_id)
        self.order[piece.id] = sign.order
        kept.append(piece)


def read(
    cluster: Cluster, jobs: Collection[TrainingJob], newest: Mapping[int, Attempt], names: set[str], since: float
) -> SignRows:
    """`newest`: by training job. `names`: nodes that facts are made of; those of the last faults are added."""
    rows = SignRows(faults=_faults(jobs))
    names = names | {name for fault in rows.faults.values() for name in fault.nodes}
    rows.sensors = {s.node: s for s in NodeSensor.objects.filter(cluster=cluster, node__in=names)}
    runs = {attempt.pk: job.run_id for job in jobs if (attempt := newest.get(job.pk)) is not None}
    for sign in _hardest(Sign.objects.filter(attempt__in=list(runs)), "attempt", MOST_OF_A_JOB):
        assert sign.attempt_id is not None
        rows.keep(rows.of_jobs.setdefault(sign.attempt_id, []), sign, runs[sign.attempt_id])
    said = Sign.objects.filter(cluster=cluster, origin=SENSOR, node__in=names, observed_at__gt=aware(since))
    for sign in _hardest(said, "node", MOST_OF_A_NODE):
        rows.keep(rows.of_nodes.setdefault(sign.node, []), sign)
    rows.recent = list(
        Incident.objects.filter(cluster=cluster, detected_at__gt=aware(since))
        .exclude(suspects=[])
        .select_related("training_job")
        .order_by("-detected_at")[:MOST_INCIDENTS]
    )
    rows.answered = _answered(cluster, rows.recent, since)
    return rows


def _hardest(signs: QuerySet[Sign], each: str, most: int) -> QuerySet[Sign]:
    order = [F("order").asc(), F("observed_at").desc(), F("pk").desc()]
    place = Window(RowNumber(), partition_by=F(each), order_by=order)
    return signs.annotate(place=place).filter(place__lte=most).order_by("place", "pk")


def _faults(jobs: Collection[TrainingJob]) -> dict[int, PastFault]:
    newest = Incident.objects.filter(training_job__in=list(jobs)).values("training_job").annotate(newest=Max("pk"))
    found = list(Incident.objects.filter(pk__in=newest.values("newest")).select_related("attempt"))
    asked = [incident.pk for incident in found if incident.cause == NOT_FINITE]
    told: dict[int, list[str]] = {}
    for number, ref in Told.objects.filter(incident__in=asked, source=SOURCE).values_list("incident", "ref"):
        told.setdefault(number, []).append(ref)
    return {incident.training_job_id: _fault(incident, tuple(told.get(incident.pk, ()))) for incident in found}


def _fault(incident: Incident, rests_on: tuple[str, ...]) -> PastFault:
    nodes = incident.attempt.nodes if incident.attempt is not None else incident.suspects
    at = incident.fault_at or incident.detected_at
    return PastFault(
        incident_id=incident.pk,
        cause=incident.cause,
        state=incident.state,
        nodes=tuple(nodes),
        suspects=tuple(incident.suspects),
        at=at.timestamp(),
        detected_at=incident.detected_at.timestamp(),
        until=incident.ended_at.timestamp() if incident.ended_at is not None else None,
        rests_on=rests_on,
    )


def _answered(cluster: Cluster, recent: Iterable[Incident], since: float) -> dict[str, float]:
    holds = NodeHold.objects.filter(node__cluster=cluster, created_at__gt=aware(since))
    made = holds.values_list("node__name").annotate(newest=Max("created_at")).order_by()
    answered = {name: at.timestamp() for name, at in made}
    for incident in recent:
        for name in incident.suspects:
            answered[name] = max(answered.get(name, 0.0), incident.detected_at.timestamp())
    return answered


def evidence(sign: Sign, sensor: NodeSensor | None, run_id: str = "") -> Evidence:
    """A row as the decision core weighs it, with the UUID of the GPU whose address it names."""
    attrs = dict(sign.attrs)
    if sensor is not None and "pci" in attrs and "gpu_uuid" not in attrs:
        uuid = uuid_at(sensor.gpus, attrs["pci"])
        attrs |= {"gpu_uuid": uuid} if uuid else {}
    return Evidence(
        id=f"sign:{sign.pk}",
        code=sign.code,
        layer=sign.layer,
        source=sign.source,
        origin=SENSOR if sign.origin == SENSOR else JOB,
        raw=sign.raw,
        at=sign.observed_at.timestamp(),
        node=sign.node,
        rank=sign.rank,
        attrs=attrs,
        count=sign.count,
        last_at=sign.last_at.timestamp() if sign.last_at is not None else None,
        job=run_id,
        received_at=sign.received_at.timestamp(),
    )


def uuid_at(gpus: Mapping[str, str], pci: Any) -> str:
    """By PCI address, with or without a function, with four or eight digits of domain."""
    known = {_address(address): uuid for address, uuid in gpus.items()}
    return known.get(_address(str(pci)), "")


def _address(text: str) -> str:
    domain, _, rest = text.strip().lower().split(".", 1)[0].partition(":")
    if rest.count(":") == 0:  # no domain at all
        domain, rest = "0000", f"{domain}:{rest}"
    return f"{domain[-4:]}:{rest}"


# --- one subject --------------------------------------------------------------------------------------------------


def said_about(rows: SignRows, attempt: Attempt | None, fault: PastFault | None) -> list[Evidence]:
    """What the attempt's own processes said; what sensors said of its nodes since shortly before it began, and of the
    last fault's nodes since then. Hardest and newest first."""
    since: dict[str, float] = {}
    if fault is not None:
        since = dict.fromkeys(fault.nodes, fault.at - BEFORE_S)
    if attempt is not None:
        began = attempt.launched_at or attempt.created_at
        for name in attempt.nodes:
            since[name] = min(since.get(name, began.timestamp()), began.timestamp() - BEFORE_S)
    found = [e for name, from_ in since.items() for e in rows.of_nodes.get(name, ()) if (e.at or 0.0) >= from_]
    own = rows.of_jobs.get(attempt.pk, []) if attempt is not None else []
    return sorted([*own, *found], key=lambda e: (rows.order[e.id], -(e.at or 0.0), e.id))


def readable(rows: SignRows, nodes: Iterable[str], now: float) -> tuple[frozenset[str], frozenset[str]]:
    """-> (what could not be read, nodes whose kernel log is read): a reader that failed, or a sensor that is not there,
    is unknown and not clean."""
    names = set(nodes)
    clean = frozenset(name for name in names if _reads_kernel(rows.sensors.get(name), now))
    return frozenset({"kernel"} if names - clean else ()), clean


def _reads_kernel(sensor: NodeSensor | None, now: float) -> bool:
    if sensor is None or sensor.received_at is None or now - sensor.received_at.timestamp() > SENSOR_FRESH_S:
        return False
    return bool(sensor.readers.get("kernel") == READ)


def gpus_held(rows: SignRows, reports: Iterable[AgentReport]) -> dict[str, frozenset[str]]:
    """By node the UUIDs that the job holds there: by its agent's word; else what the agent sees, where that is less
    than the node has (a container). A node that is left out is unknown: all of its GPUs may be the job's."""
    held = {}
    for report in reports:
        sensor = rows.sensors.get(report.node)
        seen, there = set(report.identity.get("gpus", ())), set(sensor.gpus.values() if sensor is not None else ())
        own = set(report.gpus) or (seen if seen and seen < there else set())
        if own:
            held[report.node] = frozenset(own)
    return held


def addresses(reports: Iterable[AgentReport]) -> dict[str, str]:
    """Address to node, by what the agents say of their own; one that two claim names nobody."""
    pairs = {(address, report.node) for report in reports for address in report.addresses.values() if address}
    nodes: dict[str, set[str]] = {}
    for address, node in pairs:
        nodes.setdefault(address, set()).add(node)
    return {address: min(names) for address, names in sorted(nodes.items()) if len(names) == 1}


def rank_nodes(reports: Iterable[AgentReport]) -> dict[int, str]:
    return {rank["rank"]: report.node for report in reports for rank in report.ranks if "rank" in rank}
