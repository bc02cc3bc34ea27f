"""The messages of a node's sensor, docs/formats.md section 9: `POST /api/v1/sense`.

Records are those of an agent's message (`records`), their numbers count in `stream`; the answer is ingest's
(`messages.Answer`). Decoding is as strict and as tolerant as there: unknown keys are ignored, a missing or mistyped one
is a `MessageError` that says where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker_hooks.protocol.machine import MachineIdentity, decode_machine, encode_machine
from worker_hooks.protocol.messages import PROTOCOL, MessageError, Reader, Record, encode_record
from worker_hooks.protocol.records import decode_record

SENSE = "/api/v1/sense"
OK, ABSENT = "ok", "absent"
MAX_GPUS = 64
MAX_READERS = 32
STATUS_CHARS = 500


@dataclass(frozen=True)
class Gpu:
    """`pci`: domain, bus and device in lower case as Xid lines have them (`0000:9b:00`)."""

    uuid: str
    pci: str


@dataclass(frozen=True)
class SenseMessage:
    """`stream`: of the spool that numbers the records, drawn when it was made. `readers`: `ok`, `absent` (no such
    hardware) or what failed, by name of the reader; never evidence against the node. `clock_offset_s`: seconds to add
    to this node's clock to get the controller's, None before the first answer."""

    node: str
    stream: str
    sent_at: float
    version: str
    started_at: float
    boot_id: str | None = None
    clock_offset_s: float | None = None
    machine: MachineIdentity | None = None
    gpus: tuple[Gpu, ...] = ()
    readers: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Record, ...] = ()


def encode_sense(message: SenseMessage) -> dict[str, Any]:
    machine = {} if message.machine is None else {"machine": encode_machine(message.machine)}
    return {
        "protocol": PROTOCOL,
        "node": message.node,
        "stream": message.stream,
        "boot_id": message.boot_id,
        "sent_at": message.sent_at,
        "version": message.version,
        "started_at": message.started_at,
        "clock_offset_s": message.clock_offset_s,
        **machine,
        "gpus": [{"uuid": gpu.uuid, "pci": gpu.pci} for gpu in message.gpus],
        "readers": dict(message.readers),
        "records": [encode_record(record) for record in message.records],
    }


def decode_sense(data: object) -> SenseMessage:
    """Builtins (from JSON) -> SenseMessage. Raises MessageError that names the place."""
    source = Reader.of(data, "message")
    if source.integer("protocol") != PROTOCOL:
        raise MessageError("message.protocol", f"this controller speaks {PROTOCOL}; update the older side")
    return SenseMessage(
        node=_name(source, "node", 255),
        stream=_name(source, "stream", 64),
        sent_at=source.number("sent_at"),
        version=source.text("version", 64),
        started_at=source.number("started_at"),
        boot_id=source.optional_text("boot_id", 64),
        clock_offset_s=source.optional_number("clock_offset_s"),
        machine=decode_machine(source.data.get("machine")),
        gpus=_gpus(source) if source.data.get("gpus") is not None else (),
        readers=_readers(source) if source.data.get("readers") is not None else {},
        records=tuple(decode_record(item) for item in source.readers("records")),
    )


def _name(source: Reader, key: str, limit: int) -> str:
    text = source.text(key, limit)
    if not text.strip():
        raise MessageError(source.path(key), "empty")
    return text


def _gpus(source: Reader) -> tuple[Gpu, ...]:
    items = source.readers("gpus")
    if len(items) > MAX_GPUS:
        raise MessageError(source.path("gpus"), f"more than {MAX_GPUS}")
    return tuple(Gpu(item.text("uuid", 128), item.text("pci", 32)) for item in items)


def _readers(source: Reader) -> dict[str, str]:
    readers = source.reader("readers")
    if len(readers.data) > MAX_READERS:
        raise MessageError(source.path("readers"), f"more than {MAX_READERS}")
    return {name[:64]: readers.text(name, STATUS_CHARS) for name in readers.data}
