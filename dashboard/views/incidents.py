"""The list of incidents, and each on a page of its own; the page of its training job shows it as well."""

import re
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controller.clock import utcnow
from controller.decision.incident import INCIDENT
from controller.models import Incident
from controller.queries.freshness import silences
from controller.queries.incidents import find, page_of
from controller.queries.phases import phases_of
from dashboard import formats, words
from dashboard.presenters.incident import cost_of, incident_view
from dashboard.views.answers import fragment

BIGGEST = 2**63 - 1
_CURSOR = re.compile(r"(\d{1,17})\.(\d{1,18})", re.ASCII)


@login_required
@require_safe
def incidents(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/incidents.html", _context(request))


@login_required
@require_safe
def incidents_live(request: HttpRequest) -> HttpResponse:
    return fragment(request, "dashboard/incidents_live.html", _context(request))


@login_required
@require_safe
def incident(request: HttpRequest, number: int) -> HttpResponse:
    return render(request, "dashboard/incident.html", _one(request, number))


@login_required
@require_safe
def incident_live(request: HttpRequest, number: int) -> HttpResponse:
    return fragment(request, "dashboard/incident_live.html", _one(request, number))


def _one(request: HttpRequest, number: int) -> dict[str, Any]:
    story = find(request.user, number) if number <= BIGGEST else None
    if story is None:
        raise Http404("No such incident, or of somebody else’s training job.")
    view = incident_view(story.incident, story.tenants)
    return {
        "view": view,
        "job": story.incident.training_job,
        "title": f"Incident {number}, {view.word.text.lower()}",
        "nodes": story.nodes,
        "silences": silences(utcnow()),
        "section": "incidents",
    }


def _context(request: HttpRequest) -> dict[str, Any]:
    only_live = request.GET.get("state") == "live"
    page = page_of(request.user, INCIDENT.live, only_live, _cursor(request.GET.get("older", "")))
    more = ""
    if page.older is not None:
        at, pk = page.older
        micros = int(at.timestamp()) * 1_000_000 + at.microsecond
        more = f"?{'state=live&' if only_live else ''}older={micros}.{pk}"
    return {
        "page": page,
        "rows": [_row(incident) for incident in page.rows],
        "only_live": only_live,
        "more": more,
        "silences": silences(utcnow()),
        "section": "incidents",
        "query": request.GET.urlencode(),
    }


def _row(incident: Incident) -> dict[str, Any]:
    recovery = next(iter(incident.recoveries.all()), None)
    total = phases_of(recovery.stamps).total if recovery is not None else None
    return {
        "incident": incident,
        "word": words.of_incident(incident.state, recovery.verification if recovery else ""),
        "rto": formats.NONE if total is None else formats.units(total, 0.1),
        "cost": cost_of(recovery) or formats.NONE,
    }


def _cursor(text: str) -> tuple[datetime, int] | None:
    match = _CURSOR.fullmatch(text)
    if match is None:
        return None
    try:
        at = datetime.fromtimestamp(int(match[1]) // 1_000_000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return at.replace(microsecond=int(match[1]) % 1_000_000), int(match[2])
