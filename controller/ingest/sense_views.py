"""`POST /api/v1/sense` (docs/formats.md, section 9)."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from controller import clock
from controller.api.bodies import decode_json, read_body
from controller.ingest.auth import bearer_digest, sensor_of
from controller.ingest.door import answered
from controller.ingest.receive import Received
from controller.ingest.sense import receive_sense
from worker_hooks.protocol.sense import decode_sense


@csrf_exempt
@require_POST
def sense(request: HttpRequest) -> HttpResponse:
    return answered(request, _sense)


def _sense(request: HttpRequest) -> Received:
    """The token first: nothing of a stranger's body is looked at."""
    sensor = sensor_of(bearer_digest(request))
    message = decode_sense(decode_json(read_body(request)))
    return receive_sense(sensor, message, clock.now())
