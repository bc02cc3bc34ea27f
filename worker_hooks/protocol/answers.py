"""The controller's answer to a message of an agent or a sensor, docs/formats.md section 5."""

from dataclasses import dataclass, field
from typing import Any

from worker_hooks.protocol.messages import PROTOCOL, Reader


@dataclass(frozen=True)
class Instruction:
    """kind: `probe` (id, targets), `stop` (reason), `superseded` (generation)."""

    kind: str
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    acked: int
    server_time: float
    instructions: tuple[Instruction, ...] = ()
    pace_s: float = 1.0
    checkpoint_interval_s: float | None = None


def encode_answer(answer: Answer) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "acked": answer.acked,
        "server_time": answer.server_time,
        "instructions": [{"kind": i.kind, **i.body} for i in answer.instructions],
        "pace_s": answer.pace_s,
        "checkpoint_interval_s": answer.checkpoint_interval_s,
    }


def decode_answer(data: object) -> Answer:
    """The controller's answer; unknown instruction kinds are kept (the agent logs and skips them)."""
    source = Reader.of(data, "answer")
    instructions = tuple(
        Instruction(item.text("kind"), {k: v for k, v in item.data.items() if k != "kind"})
        for item in source.readers("instructions")
    )
    return Answer(
        acked=source.integer("acked"),
        server_time=source.number("server_time"),
        instructions=instructions,
        pace_s=source.number("pace_s"),
        checkpoint_interval_s=source.optional_number("checkpoint_interval_s"),
    )
