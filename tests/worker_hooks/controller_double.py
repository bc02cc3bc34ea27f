"""A small real HTTP server that answers as the controller does, and misbehaves on request.

It keeps records as the controller would: by sequence number, acked without gaps. A number that comes twice with
different content is a `conflict`: no test may see one.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Key = tuple[str, int, str]


class ControllerDouble:
    """`mode`: ok, error (500), busy (503), garbage, cut, drip, refuse_token (401). `away()` and `back()` close and open
    the port."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self.mode = "ok"
        self.messages: list[dict[str, Any]] = []
        self.records: dict[Key, dict[int, dict[str, Any]]] = {}
        self.conflicts: list[tuple[Key, int]] = []
        self.registrations: list[dict[str, Any]] = []
        self.instructions: list[dict[str, Any]] = []
        self.interval_s: float | None = None
        self.measured: Any = {}
        self.superseded_by: int | None = None
        self.rejects: Callable[[dict[str, Any]], bool] = lambda record: False
        self.rejects_heartbeats = False
        self.tokens: set[str] = set()
        self.pace_s = 0.1
        self.clock_ahead_s = 0.0
        self.refused = 0
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.back()

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def back(self) -> None:
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with suppress(OSError):
                    double._serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((self.address, self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def away(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def values(self, name: str = "loss", rank: int = 0, generation: int = 1) -> list[int]:
        """The steps of every metric point of one rank, in the order of their records."""
        steps: list[int] = []
        with self._lock:
            for (_, number, _), kept in sorted(self.records.items()):
                for seq in sorted(kept):
                    record = kept[seq]
                    if number == generation and (record.get("name"), record.get("rank")) == (name, rank):
                        steps += record.get("steps", [])
        return steps

    def events(self, name: str, generation: int | None = None) -> list[dict[str, Any]]:
        with self._lock:
            return [
                record
                for (_, number, _), kept in sorted(self.records.items())
                for _, record in sorted(kept.items())
                if record["kind"] == "event" and record["name"] == name and generation in (None, number)
            ]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        with self._lock:
            return [r for kept in self.records.values() for _, r in sorted(kept.items()) if r["kind"] == kind]

    # --- one request ---

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        data = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        token = handler.headers["Authorization"].removeprefix("Bearer ")
        if self.mode in ("cut", "garbage", "drip", "error", "busy"):
            self._misbehave(handler)
        elif handler.path == "/api/v1/register":
            with self._lock:
                self.registrations.append({**data, "api_token": token})
            self._answer(handler, 200, {"url": f"/jobs/{data['run_id']}", "measured": self.measured})
        elif self.mode == "refuse_token" or (self.tokens and token not in self.tokens):
            self.refused += 1
            self._answer(handler, 401, {"error": "unknown token"})
        else:
            self._ingest(handler, data)

    def _ingest(self, handler: BaseHTTPRequestHandler, data: dict[str, Any]) -> None:
        if self.rejects_heartbeats:
            self.refused += 1
            self._answer(handler, 400, {"what": "not in this century", "where": "message.sent_at"})
            return
        bad = next((i for i, record in enumerate(data["records"]) if self.rejects(record)), None)
        if bad is not None:
            self._answer(handler, 400, {"what": "rejected", "where": f"message.records[{bad}]"})
            return
        acked = self._keep((data["run_id"], data["generation"], data["node"]), data)
        instructions = list(self.instructions)
        superseded = self.superseded_by is not None and data["generation"] < self.superseded_by
        if superseded:
            instructions.append({"kind": "superseded", "generation": self.superseded_by})
        answer = {"acked": acked, "server_time": time.time() + self.clock_ahead_s, "instructions": instructions}
        answer |= {"protocol": 1, "pace_s": self.pace_s, "checkpoint_interval_s": self.interval_s}
        self._answer(handler, 409 if superseded else 200, answer)

    def _keep(self, key: Key, data: dict[str, Any]) -> int:
        """Each record once; returns what is acked. One that comes again with another content is a conflict."""
        with self._lock:
            self.messages.append(data)
            kept = self.records.setdefault(key, {})
            for record in data["records"]:
                if kept.setdefault(record["seq"], record) != record:
                    self.conflicts.append((key, record["seq"]))
            acked = 0
            while acked + 1 in kept:
                acked += 1
            return acked

    def _misbehave(self, handler: BaseHTTPRequestHandler) -> None:
        self.refused += 1
        if self.mode in ("error", "busy"):
            self._answer(handler, 500 if self.mode == "error" else 503, {"error": "later"}, {"Retry-After": "0"})
        elif self.mode == "garbage":
            handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"acked":')
        elif self.mode == "cut":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 200:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.05)

    @staticmethod
    def _answer(handler: BaseHTTPRequestHandler, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
