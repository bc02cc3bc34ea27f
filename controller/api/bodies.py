"""Request bodies: bounded, and decoded to builtins that every column can hold."""

from typing import Any

import msgspec
from django.http import HttpRequest
from django.http.request import RawPostDataException, UnreadablePostError

from controller.api.answers import Refused
from worker_hooks.protocol.messages import MAX_BODY_BYTES, MessageError


def read_body(request: HttpRequest) -> bytes:
    """The body, or Refused: 413 before a byte of a too long one is read, 400 for none or half of one."""
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        raise Refused(400, "not a number", "Content-Length") from None
    if length > MAX_BODY_BYTES:
        raise Refused(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "body")
    try:
        body = request.body
    except (UnreadablePostError, RawPostDataException):
        raise Refused(400, "the body ended early", "body") from None
    if not body or len(body) < length:
        raise Refused(400, "empty or cut short (a Content-Length is needed)", "body")
    return body


def decode_json(body: bytes) -> Any:
    """Builtins. A NUL, which PostgreSQL refuses in every text, becomes U+FFFD; MessageError for what is not JSON."""
    if b"\\u0000" in body:
        body = body.replace(b"\\\\", b"\\u005c").replace(b"\\u0000", b"\\ufffd")
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MessageError("body", str(error)) from None
