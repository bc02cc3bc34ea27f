"""`POST /api/v1/sense` (docs/formats.md, section 9)."""

import logging

from django.db import DatabaseError, DataError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from controller import clock
from controller.api.answers import Refused, json_answer, refusal, unavailable
from controller.api.bodies import decode_json, read_body
from controller.ingest.auth import bearer_digest, sensor_of
from controller.ingest.receive import Received
from controller.ingest.sense import receive_sense
from controller.ingest.waking import WAKER
from worker_hooks.protocol.messages import MessageError, encode_answer
from worker_hooks.protocol.sense import decode_sense

log = logging.getLogger(__name__)


@csrf_exempt
@require_POST
def sense(request: HttpRequest) -> HttpResponse:
    try:
        received = _sense(request)
    except Refused as refused:
        return refusal(refused)
    except MessageError as error:
        return json_answer({"what": error.what, "where": error.where}, 400)
    except DataError as error:
        return json_answer({"what": f"a value fits no column: {error}"[:500], "where": "records"}, 400)
    except DatabaseError as error:
        log.warning("a sensor's message was not committed: %s", error)
        return unavailable("the database did not commit")
    if received.wake:
        WAKER.leave_note()
    return json_answer(encode_answer(received.answer))


def _sense(request: HttpRequest) -> Received:
    """The token first: nothing of a stranger's body is looked at."""
    sensor = sensor_of(bearer_digest(request))
    message = decode_sense(decode_json(read_body(request)))
    return receive_sense(sensor, message, clock.now())
