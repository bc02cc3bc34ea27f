"""The only place of the controller that reads the wall clock. Everything else is given `now`."""

import time
from datetime import UTC, datetime


def now() -> float:
    """Unix seconds, UTC."""
    return time.time()


def aware(seconds: float) -> datetime:
    """Unix seconds as an aware UTC datetime, for columns and pages."""
    return datetime.fromtimestamp(seconds, tz=UTC)


def utcnow() -> datetime:
    return aware(now())
