"""The durable record kinds of docs/formats.md section 5: what each must carry.

A record's body stays a plain dict (it is stored as JSON); this file says which keys a kind must have and of what type.
A kind that this version does not know is kept as it is, so that a newer agent loses nothing at an older controller.
"""

import math
from typing import Any

from worker_hooks.protocol.messages import PROBE_OUTCOMES, MessageError, Reader, Record, decode_number

MAX_POINTS = 4096
# Another number of ranks than at the save is no defect, and no bit claim either: RESHARDED.
OUTCOMES = ("PASS", "DEGRADED", "RESHARDED", "FAIL")
MAX_ATTRS = 32
ATTR_NAME_CHARS = 64
ATTR_CHARS = 2048
CHECKS = (
    "step",
    "parameters",
    "optimizer",
    "learning_rate",
    "data_position",
    "consumed",
    "data_ledger",
    "global_batch",
    "sample_random",
    "random_state",
    "replicas",
    "layout",
    "loss",
)
EVENTS = (
    "agent_started",
    "generation_minted",
    "rank_started",
    "rank_exited",
    "rendezvous",
    "loaded",
    "warmed_up",
    "first_step",
    "first_new_step",
    "finished",
    "stopped",
    "rank_log",
    "save_asked",
    "save_begun",
)


def decode_record(source: Reader) -> Record:
    """One record; raises MessageError that names the place."""
    kind = source.text("kind", 64)
    body = {key: value for key, value in source.data.items() if key not in ("seq", "kind", "at")}
    record = Record(source.integer("seq", least=1), kind, source.number("at"), body)
    check = _CHECKS.get(kind)
    if check is not None:
        check(source)
    return record


def _metrics(source: Reader) -> None:
    source.integer("rank", least=0)
    source.text("name", 128)
    steps, times, values = source.get("steps", list), source.get("times", list), source.get("values", list)
    if not len(steps) == len(times) == len(values):
        raise MessageError(source.where, "steps, times and values differ in length")
    if len(steps) > MAX_POINTS:
        raise MessageError(source.where, f"more than {MAX_POINTS} points in one record")
    for i, step in enumerate(steps):
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 1 << 63:
            raise MessageError(source.path(f"steps[{i}]"), "expected a step number")
    for name, numbers in (("times", times), ("values", values)):
        for i, value in enumerate(numbers):
            number = decode_number(value, source.path(f"{name}[{i}]"))
            if name == "times" and not math.isfinite(number):
                raise MessageError(source.path(f"times[{i}]"), "not finite")


def _event(source: Reader) -> None:
    source.text("name", 64)
    source.optional_integer("rank")
    source.reader("data")


def _checkpoint(source: Reader) -> None:
    source.integer("step", least=0)
    source.text("folder", 255)
    source.choice("state", ("committed", "verified", "quarantined", "failed"))
    source.optional_text("tier", 16)


def _verification(source: Reader) -> None:
    source.integer("rank", least=0)
    source.choice("stage", ("before_first_step", "replay"))
    source.integer("step", least=0)
    source.choice("outcome", OUTCOMES)
    for check in source.readers("checks"):
        check.text("name", 64)
        check.choice("outcome", OUTCOMES)


def _sign(source: Reader) -> None:
    source.text("code", 128)
    source.text("raw", 8192)
    source.text("layer", 64)
    source.text("source", 128)
    source.optional_text("node", 255)
    source.optional_number("last_at")
    for name, least in (("rank", 0), ("count", 1)):
        if source.data.get(name) is not None:
            source.integer(name, least)
    if source.data.get("attrs") is not None:
        _attrs(source.reader("attrs"))


def _attrs(attrs: Reader) -> None:
    if len(attrs.data) > MAX_ATTRS:
        raise MessageError(attrs.where, f"more than {MAX_ATTRS} attributes")
    for name, value in attrs.data.items():
        if not isinstance(name, str) or len(name) > ATTR_NAME_CHARS:
            raise MessageError(attrs.where, f"a name longer than {ATTR_NAME_CHARS} characters")
        if isinstance(value, str):
            attrs.text(name, ATTR_CHARS)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            attrs.integer(name)
        else:
            attrs.number(name)


def _probe(source: Reader) -> None:
    source.text("id", 128)
    source.text("node", 255)
    source.choice("outcome", PROBE_OUTCOMES)


def _run_facts(source: Reader) -> None:
    source.optional_integer("total_steps")


_CHECKS: dict[str, Any] = {
    "metrics": _metrics,
    "event": _event,
    "checkpoint": _checkpoint,
    "verification": _verification,
    "sign": _sign,
    "probe": _probe,
    "run_facts": _run_facts,
}
