"""The wire messages of docs/formats.md section 5, as plain dataclasses, with one strict decoder.

The controller's transport decodes JSON to builtins; `decode_message` does the rest, so there is one schema.
Unknown keys are ignored (a newer agent may send more); a missing or mistyped known key is a `MessageError` that says
where. Encoding is `encode_message(...)` -> builtins for `json.dumps(..., allow_nan=False)`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from worker_hooks.protocol.identity import FORM, is_run_id
from worker_hooks.protocol.machine import MachineIdentity, decode_machine, encode_machine, texts
from worker_hooks.protocol.pace import Pace, decode_pace, encode_pace

PROTOCOL = 1
MAX_BODY_BYTES = 1 << 20

RECORD_KINDS = ("metrics", "event", "checkpoint", "verification", "sign", "probe", "run_facts")
PHASES = ("starting", "loading", "warming_up", "training", "saving", "evaluation", "finished", "failed")
AGENT_STATES = ("waiting", "starting", "running", "ending", "ended")
RANK_STATES = ("starting", "running", "exited")
PROBE_OUTCOMES = ("open", "refused", "timeout", "unreachable")
ProbeOutcome = Literal["open", "refused", "timeout", "unreachable"]


class MessageError(ValueError):
    """A message that breaks the schema. `where` is a path such as `records[3].steps`."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


@dataclass(frozen=True)
class JobRef:
    """The Slurm side of an attempt, as the agent's environment tells it."""

    cluster: str
    slurm_job_id: str
    restart_count: int
    user: str
    nodes: str


@dataclass(frozen=True)
class AgentInfo:
    version: str
    pid: int
    leader: bool
    state: str
    started_at: float
    addresses: dict[str, str] = field(default_factory=dict)
    probe_port: int | None = None
    clock_offset_s: float | None = None  # seconds to add to this node's clock to get the controller's
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that the job holds on this node, where it can tell


@dataclass(frozen=True)
class RankState:
    """One rank as its agent sees it. Ages are seconds at `sent_at`; None until the rank wrote its slot."""

    rank: int
    pid: int | None
    state: str
    phase: str | None
    step: int | None
    progress_age_s: float | None
    beat_age_s: float | None
    exit_code: int | None = None
    signal: int | None = None
    pace: Pace | None = None


@dataclass(frozen=True)
class Record:
    """A durable item. `body` holds the keys of its kind, already checked by `decode_message`."""

    seq: int
    kind: str
    at: float
    body: dict[str, Any]


@dataclass(frozen=True)
class Message:
    run_id: str
    generation: int
    node: str
    sent_at: float
    job: JobRef
    agent: AgentInfo
    boot_id: str | None = None
    ranks: tuple[RankState, ...] = ()
    records: tuple[Record, ...] = ()
    machine: MachineIdentity | None = None


# --- values -----------------------------------------------------------------------------------------------------


def encode_number(value: float) -> float | str:
    """JSON has no NaN: non-finite numbers travel as `NaN`, `Infinity`, `-Infinity`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def decode_number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MessageError(where, f"expected a number, got {type(value).__name__}")
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise MessageError(where, f"expected a number or NaN, Infinity, -Infinity, got {value[:40]!r}")
    return _to_float(value, where)


def _to_float(value: int | float | str, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise MessageError(where, "too large for a number") from None


# --- encoding ---------------------------------------------------------------------------------------------------


def encode_record(record: Record) -> dict[str, Any]:
    return {"seq": record.seq, "kind": record.kind, "at": record.at, **record.body}


def encode_rank(rank: RankState) -> dict[str, Any]:
    plain = {key: value for key, value in vars(rank).items() if key != "pace"}
    return plain if rank.pace is None else {**plain, "pace": encode_pace(rank.pace)}


def encode_message(message: Message) -> dict[str, Any]:
    """The message as JSON builtins. Raises nothing: a `Message` is valid by construction."""
    machine = {} if message.machine is None else {"machine": encode_machine(message.machine)}
    return {
        "protocol": PROTOCOL,
        "run_id": message.run_id,
        "generation": message.generation,
        "node": message.node,
        "sent_at": message.sent_at,
        "boot_id": message.boot_id,
        "job": asdict(message.job),
        "agent": _agent(message.agent),
        "ranks": [encode_rank(rank) for rank in message.ranks],
        "records": [encode_record(record) for record in message.records],
        **machine,
    }


def _agent(agent: AgentInfo) -> dict[str, Any]:
    told = asdict(agent)
    gpus = told.pop("gpus")
    return {**told, "gpus": list(gpus)} if gpus else told


# --- decoding ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A JSON object with typed access; every complaint names its path."""

    data: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, data: object, where: str) -> "Reader":
        if not isinstance(data, Mapping):
            raise MessageError(where, f"expected an object, got {type(data).__name__}")
        return cls(data, where)

    def path(self, key: str) -> str:
        return f"{self.where}.{key}"

    def get(self, key: str, *types: type) -> Any:
        if key not in self.data:
            raise MessageError(self.path(key), "missing")
        value = self.data[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise MessageError(self.path(key), f"expected {types[0].__name__}, got {type(value).__name__}")
        return value

    def text(self, key: str, limit: int = 4096) -> str:
        value: str = self.get(key, str)
        if len(value) > limit:
            raise MessageError(self.path(key), f"longer than {limit} characters")
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in allowed:
            raise MessageError(self.path(key), f"{value[:40]!r} is none of {', '.join(allowed)}")
        return value

    def integer(self, key: str, least: int | None = None) -> int:
        value: int = self.get(key, int)
        if least is not None and value < least:
            raise MessageError(self.path(key), f"{value} is below {least}")
        if abs(value) >= 1 << 63:
            raise MessageError(self.path(key), "does not fit 64 bits")
        return value

    def boolean(self, key: str) -> bool:
        return bool(self.get(key, bool))

    def number(self, key: str) -> float:
        value = _to_float(self.get(key, int, float), self.path(key))
        if not math.isfinite(value):
            raise MessageError(self.path(key), "not finite")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self.data.get(key) is None else self.integer(key)

    def optional_number(self, key: str) -> float | None:
        return None if self.data.get(key) is None else self.number(key)

    def optional_text(self, key: str, limit: int = 4096) -> str | None:
        return None if self.data.get(key) is None else self.text(key, limit)

    def reader(self, key: str) -> "Reader":
        return Reader.of(self.data.get(key), self.path(key))

    def readers(self, key: str) -> "list[Reader]":
        items = self.get(key, list)
        return [Reader.of(item, f"{self.path(key)}[{i}]") for i, item in enumerate(items)]


def decode_message(data: object) -> Message:
    """Builtins (from JSON) -> Message. Raises MessageError that names the place."""
    from worker_hooks.protocol.records import decode_record

    source = Reader.of(data, "message")
    if source.integer("protocol") != PROTOCOL:
        raise MessageError("message.protocol", f"this controller speaks {PROTOCOL}; update the older side")
    if not is_run_id(source.data.get("run_id")):
        raise MessageError("message.run_id", f"expected {FORM}")
    job, agent = source.reader("job"), source.reader("agent")
    return Message(
        run_id=source.text("run_id"),
        generation=source.integer("generation", least=1),
        node=source.text("node", 255),
        sent_at=source.number("sent_at"),
        boot_id=source.optional_text("boot_id", 64),
        job=JobRef(
            cluster=job.text("cluster", 255),
            slurm_job_id=job.text("slurm_job_id", 64),
            restart_count=job.integer("restart_count", least=0),
            user=job.text("user", 255),
            nodes=job.text("nodes", 65536),
        ),
        agent=AgentInfo(
            version=agent.text("version", 64),
            pid=agent.integer("pid"),
            leader=agent.boolean("leader"),
            state=agent.choice("state", AGENT_STATES),
            started_at=agent.number("started_at"),
            addresses={str(k): str(v) for k, v in agent.reader("addresses").data.items()},
            probe_port=agent.optional_integer("probe_port"),
            clock_offset_s=agent.optional_number("clock_offset_s"),
            gpus=texts(agent.data.get("gpus")),
        ),
        ranks=tuple(_rank(item) for item in source.readers("ranks")),
        records=tuple(decode_record(item) for item in source.readers("records")),
        machine=decode_machine(source.data.get("machine")),
    )


def _rank(item: Reader) -> RankState:
    return RankState(
        rank=item.integer("rank", least=0),
        pid=item.optional_integer("pid"),
        state=item.choice("state", RANK_STATES),
        phase=item.choice("phase", PHASES) if item.data.get("phase") is not None else None,
        step=item.optional_integer("step"),
        progress_age_s=item.optional_number("progress_age_s"),
        beat_age_s=item.optional_number("beat_age_s"),
        exit_code=item.optional_integer("exit_code"),
        signal=item.optional_integer("signal"),
        pace=decode_pace(item.data.get("pace"), PHASES),
    )
