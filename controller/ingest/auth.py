"""Who is speaking: a bearer token, compared by its digest.

A run token belongs to one training job, or to the tasks of one array. That its digest is unknown (401) and that it is
another run's (403) are told apart only after the cheap comparison failed.
"""

import hmac
from datetime import datetime

from django.http import HttpRequest

from controller.api.answers import Refused
from controller.arrays import has_task, task_job
from controller.models import JobArray, NodeSensor, TrainingJob
from worker_hooks.protocol.identity import is_run_id, split_run_id, token_digest

MAX_TOKEN_CHARS = 512


def bearer_digest(request: HttpRequest) -> str:
    """The digest of the request's bearer token; Refused(401) without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS:
        raise Refused(401, "a bearer token is needed", "Authorization")
    return token_digest(token)


def training_job_of(digest: str, run_id: str, now: datetime) -> TrainingJob:
    """The training job that this run token speaks for; of an array's task that nobody heard of yet the row to be, not
    saved. Refused: 401 unknown token, 403 another run's token, or no task of its array."""
    job = TrainingJob.objects.defer("view", "facts").filter(run_id=run_id).first()
    if job is not None and job.token_digest and hmac.compare_digest(job.token_digest, digest):
        return job
    array, task = _array_of(digest, run_id) if job is None else (None, None)
    if array is not None and task is not None and has_task(array, task):
        return task_job(array, task, now)
    if array is not None:
        raise Refused(403, f"this token's array has the tasks {array.tasks[:200]}", "run_id")
    if _is_known(digest):
        raise Refused(403, "this token belongs to another run", "Authorization")
    raise Refused(401, "unknown token", "Authorization")


def sensor_of(digest: str) -> NodeSensor:
    """The sensor whose token this is; Refused(401) for any other, a job's run token included."""
    sensor = NodeSensor.objects.filter(token_digest=digest).first()
    if sensor is None:
        raise Refused(401, "unknown token", "Authorization")
    return sensor


def _array_of(digest: str, run_id: str) -> tuple[JobArray | None, int | None]:
    """The array that token and run id agree on, and the task that the run id names."""
    base, task = split_run_id(run_id) if is_run_id(run_id) else ("", None)
    array = JobArray.objects.filter(run_id=base).first() if base else None
    if array is None or not hmac.compare_digest(array.token_digest, digest):
        return None, None
    return array, task


def _is_known(digest: str) -> bool:
    return any(rows.objects.filter(token_digest=digest).exists() for rows in (TrainingJob, JobArray))
