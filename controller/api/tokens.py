"""API tokens of people: made once, shown once, stored as digests, limited in scope and time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest

from controller.api.answers import Refused
from controller.clock import utcnow
from controller.ingest.auth import bearer_digest
from controller.models import ApiToken
from worker_hooks.protocol.identity import new_token, token_digest

# What each scope may do: a token for submitting also reads, or `relume status` would need a second one.
ALLOWS = {"read": {"read"}, "submit": {"read", "submit"}, "operate": {"read", "submit", "operate"}}
SCOPES = tuple(ALLOWS)
USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True)
class Minted:
    """`token` is shown to its owner now and is nowhere afterwards."""

    row: ApiToken
    token: str


def mint(user: User, scope: str, name: str, lifetime: timedelta | None, now: datetime) -> Minted:
    token = new_token()
    row = ApiToken.objects.create(
        user=user,
        name=name,
        digest=token_digest(token),
        scope=scope,
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )
    return Minted(row, token)


def api_user(request: HttpRequest, scope: str) -> Any:
    """The user whose token this is. Refused: 401 unknown, expired or revoked, 403 without that scope."""
    now = utcnow()
    row = ApiToken.objects.select_related("user").filter(digest=bearer_digest(request)).first()
    if row is None or row.revoked_at is not None or not row.user.is_active:
        raise Refused(401, "unknown token", "Authorization")
    if row.expires_at is not None and row.expires_at <= now:
        raise Refused(401, f"this token expired on {row.expires_at:%Y-%m-%d}", "Authorization")
    if scope not in ALLOWS.get(row.scope, set()):
        raise Refused(403, f"this token's scope is {row.scope}, {scope} is needed", "Authorization")
    if row.last_used_at is None or now - row.last_used_at > USE_NOTED_EVERY:
        ApiToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return row.user
