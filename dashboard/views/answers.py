"""Answers that say when nothing changed."""

import hashlib
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, JsonResponse
from django.template.loader import render_to_string


def matches(request: HttpRequest, etag: str) -> bool:
    """`If-None-Match` names this tag, weak or strong."""
    sent = request.headers.get("If-None-Match", "")
    return any(part.strip().removeprefix("W/") == etag for part in sent.split(","))


def _not_modified(etag: str) -> HttpResponse:
    answer = HttpResponseNotModified()
    answer.headers["ETag"] = etag
    return answer


def _private(answer: HttpResponse, etag: str) -> HttpResponse:
    """Pages of one user: a shared cache keeps none, the browser asks again each time."""
    answer.headers["ETag"] = etag
    answer.headers["Cache-Control"] = "private, no-cache"
    return answer


def fragment(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """A part of a page for its live refresh: 304 when it would read the same."""
    text = render_to_string(template, context, request=request)
    etag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    if matches(request, etag):
        return _not_modified(etag)
    return _private(HttpResponse(text), etag)


def tagged_json(request: HttpRequest, tag: str, build: Callable[[], dict[str, Any]]) -> HttpResponse:
    """`build` is called only when the tag is new to the reader. A number that JSON does not know is a bug here."""
    etag = f'"{tag}"'
    if matches(request, etag):
        return _not_modified(etag)
    return _private(JsonResponse(build(), json_dumps_params={"allow_nan": False, "separators": (",", ":")}), etag)
