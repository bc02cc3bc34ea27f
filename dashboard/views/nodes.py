"""Nodes, with who holds them and why."""

import re
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controller import policy_file
from controller.clock import utcnow
from controller.decision import rights
from controller.decision.policy import Policy
from controller.queries import nodes as queries
from controller.queries.access import sees_all
from controller.queries.freshness import silences
from dashboard.presenters.nodes import hold_lines, machine_facts, node_line
from dashboard.presenters.sensor import sensor_view
from dashboard.views.answers import fragment
from dashboard.words import MODES

_CURSOR = re.compile(r"([01]):(\d{1,18}):([A-Za-z0-9._-]{1,255})", re.ASCII)
CHIPS = (("held", "Held by Relume"), ("down", "DOWN"))


@login_required
@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/nodes.html", _context(request))


@login_required
@require_safe
def nodes_live(request: HttpRequest) -> HttpResponse:
    return fragment(request, "dashboard/nodes_live.html", _context(request))


@login_required
@require_safe
def node(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "dashboard/node.html", _node_context(request, name))


@login_required
@require_safe
def node_live(request: HttpRequest, name: str) -> HttpResponse:
    return fragment(request, "dashboard/node_live.html", _node_context(request, name))


def _context(request: HttpRequest) -> dict[str, Any]:
    only = request.GET.get("only", "")
    filters = queries.NodeFilters(
        text=request.GET.get("q", "").replace("\x00", "").strip()[:400],
        only=only if only in dict(CHIPS) else "",
    )
    now = utcnow()
    policy = _policy()
    page = queries.page_of(request.user, filters, now, _cursor(request.GET.get("older", "")))
    held_for = {row.hold.incident_id for row in page.rows if row.hold is not None and row.hold.incident_id}
    visible = queries.may_see(request.user, held_for)
    return {
        "page": page,
        "clusters": [
            (cluster, MODES[cluster.mode or policy.mode], rights.lacking(cluster.rights)) for cluster in page.clusters
        ],
        "ceiling": min(policy.ceilings.max_nodes_out, int(policy.ceilings.max_fraction_out * page.total)),
        "drains": policy.ceilings.max_drains_per_hour,
        "lines": [node_line(row, visible) for row in page.rows],
        "counts": sorted(page.by_state.items(), key=lambda pair: (-pair[1], pair[0])),
        "chips": [_chip(filters, key, words) for key, words in CHIPS],
        "filters": filters,
        "more": "?" + urlencode({"q": filters.text, "only": filters.only, "older": page.after}) if page.after else "",
        "silences": silences(now),
        "section": "nodes",
        "query": request.GET.urlencode(),
    }


def _policy() -> Policy:
    return policy_file.load(settings.RELUME_POLICY, settings.RELUME_MODE, settings.RELUME_KNOWLEDGE)


def _node_context(request: HttpRequest, name: str) -> dict[str, Any]:
    found = queries.detail(request.user, name)
    if found is None:
        raise Http404("Slurm's view has no node of that name.")
    visible = {incident.pk for incident in found.incidents}
    line = node_line(found.row, visible)
    now, staff = utcnow(), sees_all(request.user)
    return {
        "detail": found,
        "line": line,
        "holds": hold_lines(found, line, visible),
        "machine_facts": machine_facts(found.row.node) if staff else [],
        "sensor": sensor_view(found, _policy().knowledge, now, staff=staff),
        "silences": silences(now),
        "section": "nodes",
    }


def _chip(filters: queries.NodeFilters, key: str, words: str) -> dict[str, Any]:
    on = filters.only == key
    pairs = {"q": filters.text, "only": "" if on else key}
    return {"words": words, "on": on, "link": "?" + urlencode({k: v for k, v in pairs.items() if v})}


def _cursor(text: str) -> tuple[int, str, int] | None:
    match = _CURSOR.fullmatch(text)
    return None if match is None else (int(match[1]), match[3], int(match[2]))
