"""The API for programs: registration, one training job as JSON, health."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import DatabaseError, connection
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from controller import clock, commands, saving
from controller.api.answers import Refused, json_answer, refusal, unavailable
from controller.api.bodies import decode_json, read_body
from controller.api.job_json import job_json
from controller.api.register import decode
from controller.api.register import register as register_run
from controller.api.register_array import register_array
from controller.api.tokens import api_user
from controller.clock import utcnow
from controller.models import Cluster, TrainingJob
from worker_hooks._version import __version__
from worker_hooks.protocol.messages import MessageError

log = logging.getLogger(__name__)
View = Callable[..., HttpResponse]


def answers_errors(view: View) -> View:
    @wraps(view)
    def answered(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, **kwargs)
        except Refused as refused:
            return refusal(refused)
        except MessageError as error:
            return refusal(Refused(400, error.what, error.where))
        except DatabaseError as error:
            log.warning("%s: %s", view.__name__, error)
            return unavailable("the database does not answer")

    return answered


@csrf_exempt
@require_POST
@answers_errors
def register(request: HttpRequest) -> HttpResponse:
    user = api_user(request, "submit")
    told = decode(decode_json(read_body(request)))
    if told.array:
        array = register_array(told, user.get_username(), utcnow())
        return json_answer({"url": f"/?q={array.run_id}"})
    job = register_run(told, user.get_username(), utcnow())
    measured = saving.measured_before(job)
    return json_answer({"url": f"/jobs/{job.run_id}", "owner_confirmed": job.owner_confirmed, "measured": measured})


@require_GET
@answers_errors
def job(request: HttpRequest, run_id: str) -> HttpResponse:
    """A run that is not this user's looks like one that does not exist."""
    user = api_user(request, "read")
    found = TrainingJob.objects.select_related("cluster").filter(run_id=run_id).first()
    if found is None or not (user.is_staff or found.owner == user.get_username()):
        raise Refused(404, "no such training job", "run_id")
    return json_answer(job_json(found, utcnow()))


@csrf_exempt
@require_POST
@answers_errors
def save(request: HttpRequest, run_id: str) -> HttpResponse:
    """Ask the ranks for a checkpoint now. 202: it was asked for; the job's `checkpoints` show it when it counts."""
    user = api_user(request, "submit")
    found = TrainingJob.objects.filter(run_id=run_id).first()
    if found is None or not (user.is_staff or found.owner == user.get_username()):
        raise Refused(404, "no such training job", "run_id")
    try:
        commands.save_now(found, who=user.get_username(), now=clock.now())
    except commands.CommandRefused as refused:
        raise Refused(409, str(refused), "state") from None
    return json_answer({"asked": True}, status=202)


@require_GET
@answers_errors
def health(request: HttpRequest) -> HttpResponse:
    """200 if web and database answer; how old the last good view of Slurm is. For load balancers and `up`."""
    connection.ensure_connection()
    newest = Cluster.objects.aggregate(at=Max("view_at"))["at"]
    age = None if newest is None else round((utcnow() - newest).total_seconds(), 1)
    return json_answer({"status": "ok", "version": __version__, "view_age_s": age})
