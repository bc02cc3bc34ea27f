"""A `sign` record as plain values: what it says is bounded, and whose word it is depends on the door it came by."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import aware
from controller.ingest.ranges import INT32, INT64, LAST_YEAR, NODE_NAME, whole
from worker_hooks.protocol.messages import Record
from worker_hooks.signs.sign import RAW_CHARS

CODE, LAYER, SOURCE = 128, 32, 64


@dataclass(frozen=True)
class SignNote:
    """One sign of a message. `node`: the host that it names as its own, "" where it names none. `order`: of the column
    `Sign.order`. Times are the controller's and never later than its now: a clock that runs ahead must not order events
    behind what followed them."""

    seq: int
    code: str
    raw: str
    layer: str
    source: str
    node: str
    rank: int | None
    attrs: Mapping[str, Any]
    count: int
    order: int
    at: datetime
    last_at: datetime | None


def sign_note(record: Record, offset_s: float, now: float, order: int) -> SignNote:
    """`record` has passed `decode_record`: texts are bounded, `attrs` holds plain values, `last_at` is a number."""
    body = record.body
    node, last = body.get("node"), body.get("last_at")
    return SignNote(
        seq=record.seq,
        code=body["code"][:CODE],
        raw=body["raw"][:RAW_CHARS],
        layer=body["layer"][:LAYER],
        source=body["source"][:SOURCE],
        node=node if isinstance(node, str) and NODE_NAME.fullmatch(node) else "",
        rank=whole(body.get("rank"), INT32),
        attrs=dict(body.get("attrs") or {}),
        count=whole(body.get("count"), INT64, least=1) or 1,
        order=order,
        at=_corrected(record.at, offset_s, now),
        last_at=_corrected(float(last), offset_s, now) if last is not None else None,
    )


def _corrected(seconds: float, offset_s: float, now: float) -> datetime:
    return aware(min(max(seconds + offset_s, 0.0), now, LAST_YEAR))
