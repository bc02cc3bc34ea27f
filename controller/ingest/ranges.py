"""What the columns can hold: checks that the decoder of the protocol does not make."""

import re
from datetime import datetime
from typing import Any

from controller.clock import aware
from worker_hooks.protocol.messages import MessageError

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)  # as host lists spell it; it is part of a page's address
LAST_YEAR = 4102444800.0  # 2100-01-01: a clock beyond it is nonsense
TEXT = 512


def when(seconds: float, where: str) -> datetime:
    """Unix seconds -> column value, or MessageError for a clock that cannot be meant."""
    if not 0.0 <= seconds <= LAST_YEAR:
        raise MessageError(where, f"{seconds!r} is not a time between 1970 and 2100")
    return aware(seconds)


def check_node_name(name: str) -> None:
    if not NODE_NAME.fullmatch(name):
        raise MessageError("message.node", f"{name[:80]!r} is not a node name")


def whole(value: Any, most: int = INT64, least: int = 0) -> int | None:
    """An optional integer key that the protocol does not check; what is none is unknown, not an error."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None
