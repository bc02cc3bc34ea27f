"""Who is speaking: a bearer token, compared by its digest.

A run token belongs to one training job. That its digest is unknown (401) and that it is another run's (403) are told
apart only after the cheap comparison failed.
"""

import hmac

from django.http import HttpRequest

from controller.api.answers import Refused
from controller.models import TrainingJob
from worker_hooks.protocol.identity import token_digest

MAX_TOKEN_CHARS = 512


def bearer_digest(request: HttpRequest) -> str:
    """The digest of the request's bearer token; Refused(401) without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS:
        raise Refused(401, "a bearer token is needed", "Authorization")
    return token_digest(token)


def training_job_of(digest: str, run_id: str) -> TrainingJob:
    """The training job that this run token speaks for. Refused: 401 unknown token, 403 another run's token."""
    job = TrainingJob.objects.defer("view", "facts").filter(run_id=run_id).first()
    if job is not None and job.token_digest and hmac.compare_digest(job.token_digest, digest):
        return job
    if TrainingJob.objects.filter(token_digest=digest).exists():
        raise Refused(403, "this token belongs to another run", "Authorization")
    raise Refused(401, "unknown token", "Authorization")
