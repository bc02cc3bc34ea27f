"""One HTTP request with a limit on its whole duration. The standard library limits single reads only, so a server
that drips bytes could hold a caller for ever: here a timer cuts the connection.

Import it late: `http.client` brings `ssl` along, which the wrapper does not want before sbatch has run.
"""

import http.client
import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

MAX_ANSWER_BYTES = 1 << 20


class TransportError(Exception):
    """No complete answer: refused, cut, too slow, or not HTTP. Retrying may help."""


@dataclass(frozen=True)
class HttpAnswer:
    """`data` is the decoded JSON body, or None if there was none that could be decoded."""

    status: int
    data: Any
    retry_after_s: float | None

    @property
    def blames_records(self) -> bool:
        """Of a refusal (400, 413): may it be a record's fault? `message.records[3].at` and `record 7.rank` say so, and
        `body` where none of it could be decoded. A complaint about another part of the message is this version's, and
        no record is given up for it."""
        where = self.data.get("where") if isinstance(self.data, dict) else None
        return self.status == 413 or not isinstance(where, str) or where in ("", "body") or "record" in where


def post_json(url: str, path: str, token: str, body: bytes, limit_s: float) -> HttpAnswer:
    """POST within `limit_s` seconds in all, name resolution excepted. Raises TransportError."""
    try:
        connection = _connection(url, limit_s)
        prefix = urlsplit(url).path.rstrip("/")
    except (ValueError, http.client.HTTPException) as error:
        raise TransportError(f"{url!r} is not a URL: {error}") from error
    cut = threading.Timer(limit_s, _cut, (connection,))
    cut.daemon = True
    try:
        connection.connect()
        cut.start()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", prefix + path, body, headers)
        response = connection.getresponse()
        promised = response.length
        content = response.read(MAX_ANSWER_BYTES + 1)
        if promised is not None and len(content) < min(promised, MAX_ANSWER_BYTES):
            raise TransportError("the answer was cut off")
        if not cut.is_alive():
            raise TransportError(f"no whole answer within {limit_s:g} s")
        return HttpAnswer(response.status, _decode(content), _seconds(response.getheader("Retry-After")))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransportError(str(error) or type(error).__name__) from error
    finally:
        cut.cancel()
        connection.close()


def _connection(url: str, limit_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://host:port")
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return make(parts.hostname, parts.port, timeout=limit_s)


def _cut(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _decode(content: bytes) -> Any:
    if len(content) > MAX_ANSWER_BYTES:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; the date form is not used by the controller and ignored."""
    return float(text) if text is not None and text.isdigit() else None
