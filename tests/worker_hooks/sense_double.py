"""The controller's side of `POST /api/v1/sense`, kept by stream, on the double that the agents' tests use."""

import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.worker_hooks.controller_double import ControllerDouble
from worker_hooks.protocol.sense import decode_sense


class SenseDouble(ControllerDouble):
    def _ingest(self, handler: BaseHTTPRequestHandler, data: dict[str, Any]) -> None:
        assert handler.path == "/api/v1/sense"
        decode_sense(data)
        acked = self._keep((data["stream"], 1, data["node"]), data)
        answer = {"protocol": 1, "acked": acked, "server_time": time.time(), "instructions": [], "pace_s": self.pace_s}
        self._answer(handler, 200, {**answer, "checkpoint_interval_s": None})

    def codes(self) -> list[str]:
        return [record["code"] for record in self.of_kind("sign")]
