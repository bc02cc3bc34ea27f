"""The sensor of a node and the signs that were seen there lately, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.decision.meanings import Knowledge
from controller.models import Sign
from controller.queries.nodes import NodeDetail
from dashboard import formats, words
from dashboard.presenters.evidence import burst
from dashboard.words import Word

# It reports every few seconds, also when there is nothing to say.
SILENT_AFTER = timedelta(seconds=60)
HEARD = Word("Heard", "ok", "ok")
SILENT = Word("Silent", "warn", "warn")
NEVER = Word("Never heard", "warn", "warn")
REVOKED = Word("Its credential was revoked", "idle", "stop")


@dataclass(frozen=True)
class ReaderLine:
    """One reader of the sensor: what it says of itself is never evidence against the node."""

    name: str
    word: Word


@dataclass(frozen=True)
class SignLine:
    """`raw` "" where the reader may not see it: a kernel line can name another user's process."""

    at: datetime
    layer: str
    code: str
    text: str
    raw: str
    whose: str
    burst: str


@dataclass(frozen=True)
class SensorView:
    """`word` None: there is no sensor."""

    word: Word | None
    heard: datetime | None
    version: str
    readers: list[ReaderLine]
    left_out: int
    signs: list[SignLine]


def sensor_view(detail: NodeDetail, knowledge: Knowledge, now: datetime, *, staff: bool) -> SensorView:
    sensor = detail.sensor
    lines = [_sign(sign, knowledge, staff) for sign in detail.signs]
    if sensor is None:
        return SensorView(None, None, "", [], 0, lines)
    readers = [_reader(str(name), str(state)) for name, state in sorted(sensor.readers.items())]
    word = _word(sensor.received_at, sensor.token_digest, now)
    return SensorView(word, sensor.received_at, sensor.version, readers, sensor.left_out, lines)


def _word(heard: datetime | None, digest: str, now: datetime) -> Word:
    if not digest:
        return REVOKED
    if heard is None:
        return NEVER
    return HEARD if now - heard <= SILENT_AFTER else SILENT


def _reader(name: str, state: str) -> ReaderLine:
    if state == "ok":
        return ReaderLine(name, Word("reads", "ok", "ok"))
    if state.startswith("ok, "):
        return ReaderLine(name, Word(f"reads, {formats.plain(state[4:])}", "warn", "warn"))
    if state == "absent":
        return ReaderLine(name, Word("no such hardware", "idle", "minus"))
    return ReaderLine(name, Word(f"cannot read: {formats.plain(state)}", "warn", "warn"))


def _sign(sign: Sign, knowledge: Knowledge, staff: bool) -> SignLine:
    meaning = knowledge.of(sign.code)
    return SignLine(
        at=sign.observed_at,
        layer=words.LAYERS.get(sign.layer, sign.layer.capitalize()),
        code=sign.code,
        text=meaning.text if meaning is not None else "",
        raw=formats.plain(sign.raw) if staff or sign.origin == "job" else "",
        whose=words.ORIGINS.get(sign.origin, sign.origin),
        burst=burst(sign.count, sign.observed_at, sign.last_at),
    )
