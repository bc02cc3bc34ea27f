"""My training jobs."""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controller.clock import utcnow
from controller.queries.access import sees_all
from controller.queries.freshness import silences
from controller.queries.jobs import STATES, Cursor, Filters, Page, page_of
from dashboard.presenters.jobs import job_row, need
from dashboard.views.answers import fragment

_CURSOR = re.compile(r"([01])\.(\d{1,17})\.(\d{1,18})", re.ASCII)
CHIPS = (("needs", "Need you"), ("moving", "Moving"), ("queued", "In the queue"), ("ended", "Ended"))


@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/jobs.html", _context(request))


@login_required
@require_safe
def home_live(request: HttpRequest) -> HttpResponse:
    return fragment(request, "dashboard/jobs_live.html", _context(request))


def _context(request: HttpRequest) -> dict[str, Any]:
    filters = filters_of(request)
    now = utcnow()
    page = page_of(request.user, filters, now, cursor_of(request.GET.get("older", "")))
    need_count = page.counts["needs"]
    whose = "All training jobs" if filters.who == "all" else "My training jobs"
    return {
        "page": page,
        "rows": [job_row(row) for row in page.rows],
        "needs": [need(row) for row in page.needs_you],
        "heading": whose,
        "title": whose + (f", {need_count} need{'s' if need_count == 1 else ''} you" if need_count else ""),
        "chips": _chips(page),
        "older": _query(filters, older=_cursor_text(page.older)) if page.older else "",
        "newest": _query(filters) if request.GET.get("older") else "",
        "cleared": _query(Filters(who=filters.who)),
        "everything": _query(Filters(who="all")) if sees_all(request.user) and filters.who == "mine" else "",
        "filter_words": _words(filters),
        "silences": silences(now),
        "section": "jobs",
        "query": request.GET.urlencode(),
        "first_page": not request.GET.get("older"),
    }


def filters_of(request: HttpRequest) -> Filters:
    """Values that are not known are left out, so that an old bookmark still opens."""
    get = request.GET
    return Filters(
        who="all" if get.get("who") == "all" and sees_all(request.user) else "mine",
        state=get.get("state", "") if get.get("state") in STATES else "",
        restarted=get.get("restarted") == "24h",
        text=get.get("q", "").replace("\x00", "").strip()[:100],
    )


def cursor_of(text: str) -> Cursor | None:
    match = _CURSOR.fullmatch(text)
    if match is None:
        return None
    try:
        at = datetime.fromtimestamp(int(match[2]) // 1_000_000, tz=UTC).replace(microsecond=int(match[2]) % 1_000_000)
    except (OverflowError, ValueError, OSError):
        return None
    return Cursor(int(match[1]), at, int(match[3]))


def _cursor_text(cursor: Cursor) -> str:
    micros = int(cursor.created_at.timestamp()) * 1_000_000 + cursor.created_at.microsecond
    return f"{cursor.calm}.{micros}.{cursor.pk}"


def _query(filters: Filters, **more: str) -> str:
    pairs = {
        "who": "all" if filters.who == "all" else "",
        "state": filters.state,
        "restarted": "24h" if filters.restarted else "",
        "q": filters.text,
        **more,
    }
    return "?" + urlencode({key: value for key, value in pairs.items() if value})


def _chips(page: Page) -> list[dict[str, Any]]:
    """Each chip's link switches it: on when it is off, off when it is on."""
    f = page.filters
    chips = [
        {
            "words": words,
            "count": page.counts[key],
            "on": f.state == key,
            "link": _query(Filters(f.who, "" if f.state == key else key, f.restarted, f.text)),
        }
        for key, words in CHIPS
    ]
    switched = Filters(f.who, f.state, not f.restarted, f.text)
    restarted = {"words": "Restarted in 24 h", "count": page.counts["restarted"], "on": f.restarted}
    return [*chips, {**restarted, "link": _query(switched)}]


def _words(filters: Filters) -> str:
    parts = [words.lower() for key, words in CHIPS if key == filters.state]
    parts += ["restarted in the last 24 h"] if filters.restarted else []
    parts += [f"named like “{filters.text}”"] if filters.text else []
    return ", ".join(parts)
