"""One training job: its page, the live part of it, and its curve."""

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from controller import clock, commands, policy_file
from controller.clock import utcnow
from controller.models import TrainingJob
from controller.queries import curves
from controller.queries.freshness import silences
from controller.queries.job import find, story_of
from dashboard.presenters.job import job_page
from dashboard.presenters.ranks import log_tails, ranks_of
from dashboard.views.answers import fragment, tagged_json

BIGGEST = 2**62


@login_required
@require_safe
def job(request: HttpRequest, run_id: str) -> HttpResponse:
    return render(request, "dashboard/job.html", _context(request, _found(request, run_id)))


@login_required
@require_safe
def job_live(request: HttpRequest, run_id: str) -> HttpResponse:
    return fragment(request, "dashboard/job_live.html", _context(request, _found(request, run_id)))


@login_required
@require_POST
def save(request: HttpRequest, run_id: str) -> HttpResponse:
    """Ask for a checkpoint now; a job that has ended meanwhile is simply shown."""
    found = _found(request, run_id)
    if not _may_ask(request, found):
        raise PermissionDenied
    with suppress(commands.CommandRefused):
        commands.save_now(found, who=request.user.get_username(), now=clock.now())
    return redirect("job", run_id=found.run_id)


@login_required
@require_safe
def curve(request: HttpRequest, run_id: str) -> HttpResponse:
    """`?name=loss&rank=0&from=STEP&to=STEP`; the range is cut before anything is reduced."""
    found = _found(request, run_id)
    asked = curves.Asked(
        name=request.GET.get("name", "loss").replace("\x00", "")[:128],
        rank=_number(request, "rank", 2**31 - 1) or 0,
        first=_number(request, "from", BIGGEST),
        last=_number(request, "to", BIGGEST),
    )
    return tagged_json(request, curves.tag(found, asked), lambda: curves.payload(found, asked))


def _may_ask(request: HttpRequest, job: TrainingJob) -> bool:
    """Seeing a job is no right to make it do something."""
    return request.user.is_staff or job.owner == request.user.get_username()


def _found(request: HttpRequest, run_id: str) -> TrainingJob:
    found = find(request.user, run_id)
    if found is None:
        raise Http404("No such training job, or not yours.")
    return found


def _number(request: HttpRequest, name: str, limit: int) -> int | None:
    """None for what is absent or no whole number."""
    text = request.GET.get(name, "")
    return min(int(text), limit) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _context(request: HttpRequest, found: TrainingJob) -> dict[str, Any]:
    now = utcnow()
    story = story_of(found, now, request.user)
    budget = policy_file.load(settings.RELUME_POLICY, settings.RELUME_MODE).budget
    return {
        "page": job_page(story, budget),
        "job": found,
        "ranks": ranks_of(story.reports),
        "logs": log_tails(story.attempt),
        "silences": silences(now),
        "section": "jobs",
        "may_ask": _may_ask(request, found),
    }
