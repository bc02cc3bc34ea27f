"""Nodes with the holds and incidents on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, Exists, IntegerField, OuterRef, Prefetch, Q, QuerySet, Value, When

from controller.decision.node_hold import NODE_HOLD
from controller.models import Cluster, Incident, Node, NodeCheck, NodeEvent, NodeHold, NodeSensor, Sign
from controller.queries.access import visible_incidents, visible_jobs
from controller.queries.tenants import Tenant, tenants_of
from controller.slurm.hostlist import expand

PAGE = 100
EVENTS = 20
SIGNS = 20
OUT_FLAGS = {"DRAIN", "FAIL", "NOT_RESPONDING", "MAINTENANCE"}


@dataclass(frozen=True)
class NodeFilters:
    text: str = ""
    only: str = ""


@dataclass
class NodeRow:
    """`shown`: the newest view of Slurm has it; else everything here is of `node.seen_at`, and unknown since."""

    node: Node
    hold: NodeHold | None
    tenants: list[Tenant]
    shown: bool


@dataclass
class NodePage:
    rows: list[NodeRow]
    total: int
    matching: int
    by_state: dict[str, int]
    out: int
    held: int
    held_last_hour: int
    after: str
    wrong_list: str
    clusters: list[Cluster]


@dataclass
class NodeDetail:
    row: NodeRow
    holds: list[NodeHold]
    elsewhere: list[NodeHold]  # of the same machine, under other names
    incidents: list[Incident]
    events: list[NodeEvent]
    checks: list[NodeCheck]
    sensor: NodeSensor | None
    signs: list[Sign]


def page_of(user: Any, filters: NodeFilters, now: datetime, after: tuple[int, str, int] | None = None) -> NodePage:
    """Held first, then by name. `filters.text` may be a Slurm host list or a part of a name."""
    found, wrong = _matching(filters)
    live = NodeHold.objects.filter(node=OuterRef("pk"), state__in=NODE_HOLD.live)
    ordered = found.annotate(
        free=Case(When(Exists(live), then=Value(0)), default=Value(1), output_field=IntegerField())
    ).order_by("free", "name", "pk")
    matching = found.count()
    if after is not None:
        free, name, pk = after
        ordered = ordered.filter(Q(free__gt=free) | Q(free=free, name__gt=name) | Q(free=free, name=name, pk__gt=pk))
    holds = NodeHold.objects.filter(state__in=NODE_HOLD.live)
    held = Prefetch("holds", queryset=holds, to_attr="live_holds")
    nodes = list(ordered.select_related("cluster").prefetch_related(held)[: PAGE + 1])
    more = ""
    if len(nodes) > PAGE:
        last = nodes[PAGE - 1]
        more = f"{last.free}:{last.pk}:{last.name}"
    by_state, out = _overview()
    return NodePage(
        rows=_rows(nodes[:PAGE], user),
        total=sum(by_state.values()),
        matching=matching,
        by_state=by_state,
        out=out,
        held=NodeHold.objects.filter(state__in=NODE_HOLD.live).count(),
        held_last_hour=NodeHold.objects.filter(created_at__gte=now - timedelta(hours=1), adopted=False).count(),
        after=more,
        wrong_list=wrong,
        clusters=list(Cluster.objects.order_by("name")),
    )


def detail(user: Any, name: str) -> NodeDetail | None:
    node = Node.objects.filter(name=name).select_related("cluster", "machine").order_by("-seen_at").first()
    if node is None:
        return None
    holds = list(node.holds.select_related("machine")[:20])
    node.live_holds = [h for h in holds if h.state in NODE_HOLD.live]  # type: ignore[attr-defined]
    seen = visible_incidents(user).filter(Q(holds__node=node) | Q(exclusions__node=node)).distinct()
    incidents = list(seen.select_related("training_job").order_by("-detected_at")[:20])
    checks = list(node.checks.order_by("-asked_at", "-pk")[:12])
    events = list(node.events.all()[:EVENTS])
    sensor = NodeSensor.objects.filter(cluster=node.cluster_id, node=node.name).first()
    row = _rows([node], user)[0]
    return NodeDetail(row, holds, _elsewhere(node), incidents, events, checks, sensor, _signs(user, node))


def _signs(user: Any, node: Node) -> list[Sign]:
    """The newest of its sensor; what a job's own processes said only to those who may open that job. A kernel line may
    name another user's process: its text is for the staff."""
    told = Q(origin="sensor") | Q(attempt__training_job__in=visible_jobs(user))
    found = Sign.objects.filter(told, cluster=node.cluster_id, node=node.name)
    return list(found.select_related("attempt__training_job").order_by("-observed_at", "-pk")[:SIGNS])


def _elsewhere(node: Node) -> list[NodeHold]:
    if node.machine is None:
        return []
    return list(node.machine.holds.exclude(node=node).select_related("node")[:20])


def may_see(user: Any, incidents: set[int]) -> set[int]:
    """Of these incidents, those whose training job the user may open."""
    return set(visible_incidents(user).filter(pk__in=incidents).values_list("pk", flat=True))


def _matching(filters: NodeFilters) -> tuple[QuerySet[Node], str]:
    nodes: QuerySet[Node] = Node.objects.all()
    wrong = ""
    if filters.text:
        try:
            names = expand(filters.text) if any(c in filters.text for c in "[,") else []
        except ValueError as error:
            names, wrong = [], str(error)
        nodes = nodes.filter(name__in=names[:5000]) if names else nodes.filter(name__icontains=filters.text)
    if filters.only == "held":
        live = NodeHold.objects.filter(node=OuterRef("pk"), state__in=NODE_HOLD.live)
        nodes = nodes.filter(Exists(live))
    elif filters.only == "down":
        nodes = nodes.filter(base_state="DOWN")
    return nodes, wrong


def _overview() -> tuple[dict[str, int], int]:
    """How many nodes are in which base state, and how many are out of use, by whose hand ever."""
    by_state: dict[str, int] = {}
    out = 0
    for base, flags in Node.objects.order_by().values_list("base_state", "flags"):
        by_state[base or "UNKNOWN"] = by_state.get(base or "UNKNOWN", 0) + 1
        out += base == "DOWN" or bool(OUT_FLAGS & set(flags))
    return by_state, out


def _rows(nodes: Sequence[Node], user: Any) -> list[NodeRow]:
    tenants = tenants_of(user, nodes)
    rows = []
    for node in nodes:
        live: list[NodeHold] = node.live_holds  # type: ignore[attr-defined]
        view_at = node.cluster.view_at
        shown = view_at is None or node.seen_at >= view_at
        rows.append(NodeRow(node, live[0] if live else None, tenants[node.pk], shown))
    return rows
