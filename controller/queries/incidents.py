"""The list of incidents."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, Q

from controller.models import Incident, Recovery
from controller.queries.access import visible_incidents

PAGE = 50


@dataclass
class IncidentPage:
    rows: list[Incident]
    total: int
    live: int
    older: tuple[datetime, int] | None


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
