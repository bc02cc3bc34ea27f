"""`sinfo|squeue|scontrol --json` read from any version: dearer than text, and sure about free text.

Shapes differ by version: a state is a word with `state_flags` beside it, or a list; a number is a number, null,
"Infinity", a bare Infinity or NaN, or `{set, infinite, number}` (valid only when `set`); a node list is a text or an
object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from controller.errors import SlurmUnreadable
from controller.slurm import reasons, states
from controller.slurm.building import exit_status, job_id, names, present, tres_per_node, words
from controller.slurm.durations import UNKNOWN, UNLIMITED, Duration
from controller.slurm.views import JobView, NodeView

_NEVER = 2**32  # the end of a job without a limit is given as a time in another century

Item = Mapping[str, Any]
View = TypeVar("View", JobView, NodeView)


def parse_jobs(text: str) -> list[JobView]:
    """SlurmUnreadable when `text` is not an answer about jobs, or carries errors."""
    return [_built(item, _job_view) for item in _items(text, "jobs")]


def parse_nodes(text: str) -> dict[str, NodeView]:
    """By name. SlurmUnreadable when `text` is not an answer about nodes. From 24.11 on only scontrol lists nodes."""
    views = [_built(item, _node_view) for item in _items(text, "nodes")]
    return {view.name: view for view in views}


def _items(text: str, key: str) -> list[Item]:
    try:
        answer = json.loads(text)
    except ValueError as wrong:
        raise SlurmUnreadable(f"Slurm's JSON cannot be read: {wrong}", text=text[:2000]) from wrong
    if not isinstance(answer, dict) or not isinstance(answer.get(key), list) or answer.get("errors"):
        raise SlurmUnreadable(f"Slurm's JSON is no answer about {key}", text=text[:2000])
    return list(answer[key])


def _built(item: Item, build: Callable[[Item], View]) -> View:
    try:
        return build(item)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise SlurmUnreadable(f"Slurm's JSON: {wrong!r}", text=json.dumps(item)[:2000]) from wrong


def _number(value: Any) -> int | None:
    """None for everything that is no number: not set, infinite, null, NaN."""
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int | float) else None


def _count(value: Any) -> int:
    """ValueError when there is none: these facts are always there."""
    number = _number(value)
    if number is None:
        raise ValueError(f"no number: {value!r}")
    return number


def _text(value: Any) -> str:
    """Of a text, of a list of texts, of a number in any form; "" for nothing."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        number = _number(value)
        return "" if number is None else str(number)
    return "" if value is None else str(value)


def _positive(value: Any) -> int | None:
    """Ids: Slurm writes 0 for "none"."""
    return _number(value) or None


def _moment(value: Any) -> datetime | None:
    seconds = _number(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds and seconds < _NEVER else None


def _limit(item: Item) -> Duration:
    value = item.get("time_limit")
    minutes = _number(value)
    if minutes is not None:
        return timedelta(minutes=minutes)
    infinite = value in (None, "Infinity", math.inf) or (isinstance(value, dict) and value.get("infinite"))
    return UNLIMITED if infinite and "time_limit" in item else UNKNOWN


def _names(value: Any) -> tuple[str, ...]:
    """A list as text, a list of names, or the object of newer versions."""
    if isinstance(value, dict):
        allocation = value.get("allocation") or []
        return names(value.get("list")) or tuple(part.get("name") or part["nodename"] for part in allocation)
    return tuple(value) if isinstance(value, list) else names(value)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else words(value)


def _exit(value: Any) -> tuple[int, int]:
    """(code, signal); 22.05 gives the raw wait status."""
    if isinstance(value, dict) and "set" not in value:
        sent = value.get("signal") or {}
        sent = sent.get("id", sent.get("signal_id")) if isinstance(sent, dict) else sent
        return _number(value.get("return_code")) or 0, _number(sent) or 0
    return exit_status(_number(value) or 0)


# What makes a job one that Relume only watches (`unsupported`), under the names of the text form.
_EXTRA_OF_JOBS = {
    "federation_origin": "FedOrigin",
    "burst_buffer": "BurstBuffer",
    "container": "Container",
    "submit_line": "SubmitLine",
}


def _job_view(item: Item) -> JobView:
    get = item.get
    raw, array, task = _count(item["job_id"]), _positive(get("array_job_id")), _number(get("array_task_id"))
    tasks = present(_text(get("array_task_string")))
    task = task if array is not None else None
    het = _positive(get("het_job_id"))
    code, sent = _exit(get("exit_code"))
    state, limit = states.parse_job(item["job_state"]), _limit(item)
    reason = present(reasons.normalise(_text(get("state_description")) or _text(get("state_reason"))))
    return JobView(
        job_id=job_id(raw, array, task, tasks),
        raw_id=raw,
        state=state,
        name=_text(item["name"]),
        user=present(_text(get("user_name"))),
        uid=_number(get("user_id")),
        account=present(_text(get("account"))),
        qos=present(_text(get("qos"))),
        array_job_id=array,
        array_task_id=task,
        array_tasks=tasks,
        het_job_id=het,
        het_job_offset=_number(get("het_job_offset")) if het else None,
        partition=_words(item["partition"]),
        reason=reason,
        dependency=present(_text(get("dependency"))),
        nodes=_names(item["nodes"]),
        batch_host=present(_text(get("batch_host"))),
        excluded_nodes=_names(item["excluded_nodes"]),
        required_nodes=_names(item["required_nodes"]),
        features=present(_text(get("features"))),
        reservation=present(_text(get("resv_name"))),
        batch=bool(_number(item["batch_flag"])),
        requeue=bool(_number(item["requeue"])),
        restarts=_count(item["restart_cnt"]),
        priority=_number(get("priority")),
        hold_kind=reasons.hold_kind(reason),
        submit_time=_moment(item["submit_time"]),
        eligible_time=_moment(get("eligible_time")),
        start_time=_moment(get("start_time")),
        end_time=None if limit is UNLIMITED and state.live else _moment(get("end_time")),  # else a year from its start
        run_time=None,
        time_limit=limit,
        exit_code=code,
        exit_signal=sent,
        comment=present(_text(get("comment"))),
        command=present(_text(get("command"))),
        workdir=present(_text(get("current_working_directory"))),
        stdout=present(_text(get("standard_output"))),
        stderr=present(_text(get("standard_error"))),
        num_nodes=_number(get("node_count")) or 0,
        num_tasks=_number(get("tasks")) or 0,
        num_cpus=_number(get("cpus")) or 0,
        tres=present(_text(get("tres_alloc_str"))) or present(_text(get("tres_req_str"))),
        tres_per_node=tres_per_node(_text(get("tres_per_node"))),
        extra={name: text for key, name in _EXTRA_OF_JOBS.items() if (text := present(_text(get(key))))},
    )


def _node_state(item: Item) -> states.NodeState:
    value = item["state"]
    return states.parse_node(value if isinstance(value, list) else [value, *item.get("state_flags", [])])


def _node_view(item: Item) -> NodeView:
    get = item.get
    return NodeView(
        name=item["name"],
        state=_node_state(item),
        reason=get("reason") or "",
        reason_user=present(_text(get("reason_set_by_user"))) if get("reason") else "",
        reason_at=_moment(get("reason_changed_at")),
        address=present(_text(get("address"))),
        hostname=present(_text(get("hostname"))),
        port=_number(get("port")) or 0,
        boot_time=_moment(get("boot_time")),
        slurmd_start_time=_moment(get("slurmd_start_time")),
        last_busy_time=_moment(get("last_busy")),
        partitions=_words(get("partitions")),
        features=_words(get("features")),
        active_features=_words(get("active_features")),
        gres=present(_text(get("gres"))),
        cpus=_number(get("cpus")) or 0,
        cpus_alloc=_number(get("alloc_cpus")) or 0,
        memory_mb=_number(get("real_memory")) or 0,
        memory_alloc_mb=_number(get("alloc_memory")) or 0,
        tres=present(_text(get("tres"))),
        tres_alloc=present(_text(get("tres_used"))),
        version=present(_text(get("version")) or _text(get("slurmd_version"))),
        os=present(_text(get("operating_system"))),
        comment=get("comment") or "",
        extra={"Extra": str(item["extra"])} if get("extra") else {},
    )
