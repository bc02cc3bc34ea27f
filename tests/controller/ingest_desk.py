"""Posts to the controller's ingest, and what its answers say."""

import json
from typing import Any

from django.test import Client

from tests import builders as b
from worker_hooks.protocol.answers import decode_answer

NOW = b.T0 + 101.0
CLOCK, NOTE = "controller.ingest.views.clock.now", "controller.ingest.door.WAKER.leave_note"


def post(body: Any, token: str = b.TOKEN) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Client().post("/api/v1/ingest", raw, content_type="application/json", headers=headers)


def acked(body: dict[str, Any]) -> int:
    response = post(body)
    assert response.status_code == 200, response.content
    return decode_answer(response.json()).acked


def kinds(response: Any) -> list[str]:
    return [instruction.kind for instruction in decode_answer(response.json()).instructions]
