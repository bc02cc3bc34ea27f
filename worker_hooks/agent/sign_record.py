"""A sign as it travels: a `sign` record within the bounds of `protocol.records`."""

import math
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from worker_hooks.agent.run_folder import storable
from worker_hooks.agent.spool_file import Draft
from worker_hooks.protocol.records import ATTR_CHARS, ATTR_NAME_CHARS, MAX_ATTRS
from worker_hooks.signs.sign import RAW_CHARS, Scalar, Sign


def sign_draft(sign: Sign, node: str) -> Draft:
    """`node`: where it was read. A sign without a time is dated with now."""
    body: dict[str, Any] = {
        "code": sign.code,
        "raw": sign.raw[:RAW_CHARS],
        "layer": sign.layer,
        "source": sign.source,
        "node": (sign.node or node)[:255],
        "rank": sign.rank,
        "attrs": _attrs(sign.attrs),
    }
    if sign.count > 1:
        body |= {"count": sign.count, "last_at": sign.last_at}
    return Draft("sign", time.time() if sign.at is None else sign.at, storable(body))


def _attrs(attrs: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A number that no JSON or no column can carry is left out."""
    kept: dict[str, Scalar] = {}
    for name, value in islice(attrs.items(), MAX_ATTRS):
        if isinstance(value, str):
            kept[name[:ATTR_NAME_CHARS]] = value[:ATTR_CHARS]
        elif math.isfinite(value) if isinstance(value, float) else abs(value) < 1 << 63:
            kept[name[:ATTR_NAME_CHARS]] = value
    return kept
