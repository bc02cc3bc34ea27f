"""One message of a node's sensor in: everything it changes is committed in one transaction, and only then acked.

As with agents: a message may come twice, late, or to two web processes at once, and a record counts once. Records are
numbered per stream; a sensor whose spool was lost begins another one.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog
from django.db import transaction

from controller.api.answers import Refused
from controller.clock import aware
from controller.ingest import sign_rows
from controller.ingest.importance import HARD, order_of
from controller.ingest.ranges import INT32, LAST_YEAR, check_node_name, when, whole
from controller.ingest.receive import Received
from controller.ingest.signs import SignNote, sign_note
from controller.ingest.store import CLOCK_SET_BACK_S
from controller.ingest.translate import next_in_row
from controller.models import NodeSensor
from worker_hooks.protocol.answers import Answer
from worker_hooks.protocol.machine import encode_machine
from worker_hooks.protocol.messages import MessageError, Record
from worker_hooks.protocol.sense import SenseMessage

log = structlog.get_logger()

STREAMS_KEPT = 8
PACE_S = 5.0
LOST = ("dropped", "set_aside")


def receive_sense(sensor: NodeSensor, message: SenseMessage, now: float) -> Received:
    """Raises Refused (403: another node's message) and MessageError before anything is written, and the database's own
    errors with nothing committed."""
    if message.node != sensor.node:
        raise Refused(403, f"this token belongs to the sensor of {sensor.node}", "node")
    sent_at = _check(message)
    with transaction.atomic():
        return _take(sensor.pk, message, now, sent_at)


def _check(message: SenseMessage) -> datetime:
    check_node_name(message.node)
    if abs(message.clock_offset_s or 0.0) > LAST_YEAR:
        raise MessageError("message.clock_offset_s", "out of range")
    for i, record in enumerate(message.records):
        when(record.at, f"message.records[{i}].at")
    return when(message.sent_at, "message.sent_at")


def _take(pk: int, message: SenseMessage, now: float, sent_at: datetime) -> Received:
    sensor = NodeSensor.objects.select_for_update(no_key=True).get(pk=pk)
    streams = dict(sensor.streams)
    acked = streams.pop(message.stream, 0)
    records = next_in_row(message.records, acked)
    offset = sensor.clock_offset_s if message.clock_offset_s is None else message.clock_offset_s
    notes = [sign_note(r, offset, now, order_of(r.body["code"])) for r in records if r.kind == "sign"]
    if notes:
        sensor.left_out += sign_rows.of_sensor(sensor, message.stream, notes, aware(now))
    sensor.left_out += _lost(records)
    acked += len(records)
    kept = [*streams.items(), (message.stream, acked)][-STREAMS_KEPT:]
    sensor.streams = [list(pair) for pair in kept]
    columns = ["streams", "left_out"]
    if _is_newer(sensor, sent_at):
        columns += _heard(sensor, message, aware(now), sent_at)
    sensor.save(update_fields=columns)
    return Received(Answer(acked, now, pace_s=PACE_S), wake=_is_decisive(notes))


def _is_decisive(notes: Sequence[SignNote]) -> bool:
    return any(note.order == HARD for note in notes)


def _lost(records: Sequence[Record]) -> int:
    """What the sensor itself had to drop. Kinds that are not understood are acked, so that it goes on."""
    lost = 0
    for record in records:
        if record.kind == "event" and record.body["name"] in LOST:
            lost += whole(record.body["data"].get("records"), INT32) or 1
        elif record.kind != "sign":
            log.info("sense_record_unknown", kind=record.kind)
    return lost


def _is_newer(sensor: NodeSensor, sent_at: datetime) -> bool:
    """A repeated or overtaken message must not make a dead sensor look alive; one much older is a clock set back."""
    if sensor.sent_at is None:
        return True
    age = (sensor.sent_at - sent_at).total_seconds()
    return age < 0 or age > CLOCK_SET_BACK_S


def _heard(sensor: NodeSensor, message: SenseMessage, now: datetime, sent_at: datetime) -> list[str]:
    """The columns that the heartbeat part changes. A GPU that fell off the bus is not listed any more: its address
    stays known until another boot."""
    seen = {gpu.pci.lower(): gpu.uuid for gpu in message.gpus}
    same_boot = not message.boot_id or message.boot_id == sensor.boot_id
    values: dict[str, Any] = {
        "received_at": now,
        "sent_at": sent_at,
        "version": message.version,
        "readers": dict(message.readers),
        "gpus": {**sensor.gpus, **seen} if same_boot or not seen else seen,
        "boot_id": message.boot_id or sensor.boot_id,
    }
    if message.clock_offset_s is not None:
        values["clock_offset_s"] = message.clock_offset_s
    if message.machine is not None:
        values["identity"] = encode_machine(message.machine)
    for name, value in values.items():
        setattr(sensor, name, value)
    return list(values)
