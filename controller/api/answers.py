"""JSON answers. Never cached: each is about this moment."""

from typing import Any

import msgspec
from django.http import HttpResponse

RETRY_AFTER_S = 2


class Refused(Exception):
    """An answer other than 200: `status`, and the JSON that says what is wrong and where."""

    def __init__(self, status: int, what: str, where: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.what = what
        self.where = where


def json_answer(data: Any, status: int = 200) -> HttpResponse:
    answer = HttpResponse(msgspec.json.encode(data), content_type="application/json", status=status)
    answer.headers["Cache-Control"] = "no-store"
    return answer


def refusal(refused: Refused) -> HttpResponse:
    answer = json_answer({"what": refused.what, "where": refused.where}, refused.status)
    if refused.status == 503:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer


def unavailable(what: str) -> HttpResponse:
    """503: nothing was done, the same call may succeed soon."""
    return refusal(Refused(503, what, "controller"))
