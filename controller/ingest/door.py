"""What both doors, the agents' and the sensors', answer: taken, refused, or not committed."""

import logging
from collections.abc import Callable

from django.db import DatabaseError, DataError
from django.http import HttpRequest, HttpResponse

from controller.api.answers import Refused, json_answer, refusal, unavailable
from controller.ingest.receive import Received
from controller.ingest.waking import WAKER
from worker_hooks.protocol.answers import encode_answer
from worker_hooks.protocol.messages import MessageError

log = logging.getLogger(__name__)


def answered(request: HttpRequest, take: Callable[[HttpRequest], Received]) -> HttpResponse:
    """`take` commits the message, or raises; what it raises on purpose becomes an answer."""
    try:
        received = take(request)
    except Refused as refused:
        return refusal(refused)
    except MessageError as error:
        return json_answer({"what": error.what, "where": error.where}, 400)
    except DataError as error:
        return json_answer({"what": f"a value fits no column: {error}"[:500], "where": "records"}, 400)
    except DatabaseError as error:
        log.warning("%s: a message was not committed: %s", request.path, error)
        return unavailable("the database did not commit")
    if received.wake:
        WAKER.leave_note()
    return json_answer(encode_answer(received.answer), 409 if received.only_superseded else 200)
