"""A `sign` record as plain values: what it says is bounded, and whose word it is depends on the door it came by."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import aware
from controller.ingest.ranges import INT32, INT64, LAST_YEAR, NODE_NAME, TEXT, whole
from worker_hooks.protocol.messages import Record
from worker_hooks.signs.sign import RAW_CHARS

CODE, LAYER, SOURCE, KEY = 128, 32, 64, 64
MOST_ATTRS = 32


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
    """`record` has passed `decode_record`: its code, raw, layer and source are bounded texts."""
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
        attrs=_plain(body.get("attrs")),
        count=whole(body.get("count"), INT64, least=1) or 1,
        order=order,
        at=_corrected(record.at, offset_s, now),
        last_at=_corrected(float(last), offset_s, now) if last is not None and _is_number(last) else None,
    )


def _corrected(seconds: float, offset_s: float, now: float) -> datetime:
    return aware(min(max(seconds + offset_s, 0.0), now, LAST_YEAR))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(attrs: Any) -> dict[str, Any]:
    """Plain values only, as `codes` lists them; anything deeper is nobody's attribute."""
    if not isinstance(attrs, Mapping):
        return {}
    kept: dict[str, Any] = {}
    for key, value in attrs.items():
        if len(kept) == MOST_ATTRS:
            break
        if isinstance(value, str):
            kept[key[:KEY]] = value[:TEXT]
        elif isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= INT64):
            kept[key[:KEY]] = value
    return kept
