"""Incidents: the list, and one with everything that its page shows."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, Q, QuerySet

from controller.models import Action, Decision, Incident, Node, NodeHold, Recovery
from controller.queries.access import visible_incidents
from controller.queries.tenants import Tenant, tenants_of

PAGE = 50


@dataclass
class IncidentPage:
    rows: list[Incident]
    total: int
    live: int
    older: tuple[datetime, int] | None


@dataclass
class IncidentStory:
    """`nodes`: the suspects that have a page. `tenants`: of the nodes that it holds, by node id."""

    incident: Incident
    nodes: list[str]
    tenants: dict[int, list[Tenant]]


def with_story(incidents: QuerySet[Incident]) -> QuerySet[Incident]:
    """With all that is told of an incident, in a fixed number of queries."""
    return incidents.select_related("attempt").prefetch_related(
        "evidence",
        Prefetch("actions", queryset=Action.objects.order_by("order", "pk")),
        Prefetch("recoveries", queryset=Recovery.objects.select_related("from_attempt", "to_attempt")),
        Prefetch("holds", queryset=NodeHold.objects.select_related("node")),
        Prefetch("decisions", queryset=Decision.objects.only("incident_id", "notes").order_by("pk")),
    )


def find(user: Any, number: int) -> IncidentStory | None:
    """None for what does not exist and for what this user may not see: the two cannot be told apart."""
    found = with_story(visible_incidents(user).select_related("training_job")).filter(pk=number).first()
    if found is None:
        return None
    known = Node.objects.filter(cluster=found.cluster_id, name__in=found.suspects).order_by("name")
    nodes = list(known.values_list("name", flat=True))
    return IncidentStory(found, nodes, tenants_of(user, (hold.node for hold in found.holds.all())))


def page_of(user: Any, live: tuple[str, ...], only_live: bool, after: tuple[datetime, int] | None) -> IncidentPage:
    """Newest first. `live`: the states that are not over."""
    scope = visible_incidents(user)
    total, open_ones = scope.count(), scope.filter(state__in=live).count()
    found = scope.filter(state__in=live) if only_live else scope
    if after is not None:
        at, pk = after
        found = found.filter(Q(detected_at__lt=at) | Q(detected_at=at, pk__lt=pk))
    recoveries = Prefetch("recoveries", queryset=Recovery.objects.order_by("pk"))
    ordered = (
        found.select_related("training_job", "attempt").prefetch_related(recoveries).order_by("-detected_at", "-pk")
    )
    rows = list(ordered[: PAGE + 1])
    older = (rows[PAGE - 1].detected_at, rows[PAGE - 1].pk) if len(rows) > PAGE else None
    return IncidentPage(rows[:PAGE], total, open_ones, older)
