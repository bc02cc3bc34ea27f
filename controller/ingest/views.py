"""`POST /api/v1/ingest` (docs/formats.md, section 5)."""

import msgspec
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from controller import clock
from controller.api.answers import Refused
from controller.api.bodies import decode_json, read_body
from controller.ingest.auth import bearer_digest, training_job_of
from controller.ingest.door import answered
from controller.ingest.receive import Received, receive
from worker_hooks.protocol.messages import MessageError, decode_message


class _Envelope(msgspec.Struct):
    """Enough of a message to know whose it claims to be, before the rest of it is looked at."""

    run_id: str = ""


_envelope = msgspec.json.Decoder(_Envelope)


@csrf_exempt
@require_POST
def ingest(request: HttpRequest) -> HttpResponse:
    return answered(request, _ingest)


def _ingest(request: HttpRequest) -> Received:
    digest = bearer_digest(request)
    body = read_body(request)
    now = clock.now()
    job = training_job_of(digest, _claimed_run(body), clock.aware(now))
    message = decode_message(decode_json(body))
    if message.job.user != job.owner:
        raise Refused(403, f"the agent runs as {message.job.user!r}, who did not register this run", "job.user")
    return receive(job, message, now)


def _claimed_run(body: bytes) -> str:
    try:
        return _envelope.decode(body).run_id
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MessageError("body", str(error)) from None
