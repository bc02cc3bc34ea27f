"""pyslurm's values (what its `to_dict()` shows) as ours. Pure.

pyslurm says None for "not set", for zero and for "no limit" alike; what that hides is found from what stands beside it,
or left empty. What it takes apart for good stays empty or shorter than Slurm prints it: `tres` of jobs and nodes,
`tres_alloc`, the socket numbers behind a `gres`; a dependency is put together again. Attributes that have no name in
our views are not asked for, but for those in `_EXTRA_OF_JOBS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from controller.errors import SlurmUnreadable
from controller.slurm import reasons, states
from controller.slurm.building import job_id, names, present, tres_per_node, words
from controller.slurm.durations import UNKNOWN, UNLIMITED, Duration
from controller.slurm.views import JobView, NodeView, PartitionView

Item = Mapping[str, Any]
View = TypeVar("View")

_UNLIMITED = "UNLIMITED"
_EXTRA_OF_JOBS = {  # as scontrol calls them
    "burst_buffer": "BurstBuffer",
    "container": "Container",
    "federation_origin": "FedOrigin",
    "submit_line": "SubmitLine",
}


def jobs(items: Iterable[Item], partitions: Mapping[str, PartitionView]) -> list[JobView]:
    """SlurmUnreadable for an item that is not a job, as with each of these. `partitions` tell what a limit that is not
    set may mean: needed for jobs of which `limit_is_open`."""
    return [_built(item, partial(_job_view, partitions=partitions)) for item in items]


def limit_is_open(item: Item) -> bool:
    """None is "no limit", or for a pending job also "whatever its partition has"."""
    return item["time_limit"] is None and item["state"] == "PENDING"


def nodes(items: Iterable[Item]) -> dict[str, NodeView]:
    return {view.name: view for view in (_built(item, _node_view) for item in items)}


def partitions(items: Iterable[Item]) -> dict[str, PartitionView]:
    return {view.name: view for view in (_built(item, _partition_view) for item in items)}


def _built(item: Item, build: Callable[[Item], View]) -> View:
    try:
        return build(item)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise SlurmUnreadable(f"pyslurm's answer: {wrong!r}", text=repr(item)[:2000]) from wrong


def _text(value: Any) -> str:
    return present(value if value is None else str(value))


def _moment(value: Any) -> datetime | None:
    return datetime.fromtimestamp(value, UTC) if value else None


def _job_view(item: Item, partitions: Mapping[str, PartitionView]) -> JobView:
    get = item.__getitem__
    raw, array, tasks = int(get("id")), get("array_id"), _tasks(item)
    het = get("heterogeneous_id")
    state, limit = states.parse_job(get("state")), _limit(item, partitions)
    task = None if array is None or tasks or _rest_of_array(item, state) else get("array_task_id") or 0
    reason = present(reasons.normalise(get("state_reason") or ""))
    ends = get("end_time") if limit is not UNLIMITED or state.terminal else None  # a running one "ends" in a year
    return JobView(
        job_id=job_id(raw, array, task, tasks),
        raw_id=raw,
        state=state,
        name=get("name") or "",
        user=_text(get("user_name")),
        uid=get("user_id"),
        account=_text(get("account")),
        qos=_text(get("qos")),
        array_job_id=array,
        array_task_id=task,
        array_tasks=tasks,
        het_job_id=het,
        het_job_offset=None if het is None else get("heterogeneous_offset") or 0,
        partition=words(get("partition")),
        reason=reason,
        dependency=_dependency(get("dependencies")),
        nodes=names(get("allocated_nodes")),
        batch_host=_text(get("batch_host")),
        excluded_nodes=names(get("excluded_nodes")),
        required_nodes=names(get("required_nodes")),
        features=",".join(get("constraints")),
        reservation=_text(get("reservation")),
        batch=bool(get("is_batch_job")),
        requeue=bool(get("is_requeueable")),
        restarts=int(get("requeue_count") or 0),
        priority=get("priority"),
        hold_kind=reasons.hold_kind(reason),
        submit_time=_moment(get("submit_time")),
        eligible_time=_moment(get("eligible_time")),
        start_time=_moment(get("start_time")),
        end_time=_moment(ends),
        run_time=timedelta(seconds=get("run_time") or 0),
        time_limit=limit,
        exit_code=int(get("exit_code") or 0),
        exit_signal=int(get("exit_code_signal") or 0),
        comment=_text(get("comment")),
        command=_text(get("command")),
        workdir=_text(get("working_directory")),
        stdout=_text(get("standard_output")),
        stderr=_text(get("standard_error")),
        num_nodes=int(get("num_nodes") or 0),
        num_tasks=int(get("ntasks") or 0),
        num_cpus=int(get("cpus") or 0),
        tres_per_node=tres_per_node(_gres(get("gres_per_node"))),
        extra={name: text for key, name in _EXTRA_OF_JOBS.items() if (text := _text(get(key)))},
    )


def _tasks(item: Item) -> str:
    """ "5-9%2", as Slurm prints the tasks that still wait in one record; pyslurm keeps the limit apart."""
    waiting, at_once = _text(item["array_tasks_waiting"]), item["array_tasks_parallel"]
    return f"{waiting}%{at_once}" if waiting and at_once else waiting


def _rest_of_array(item: Item, state: states.JobState) -> bool:
    """The record of tasks that were cancelled before they started: no task, for which pyslurm says None as it does for
    task 0."""
    never_ran = state.terminal and not item["allocated_nodes"]
    return never_ran and item["id"] == item["array_id"] and item["array_task_id"] is None


def _limit(item: Item, partitions: Mapping[str, PartitionView]) -> Duration:
    if item["time_limit"]:
        return timedelta(minutes=item["time_limit"])
    limited = any(
        isinstance(found.max_time, timedelta) for name in words(item["partition"]) if (found := partitions.get(name))
    )
    return UNKNOWN if limited and limit_is_open(item) else UNLIMITED


def _dependency(parts: Mapping[str, Any] | None) -> str:
    if not parts:
        return ""
    lists = [f"{kind}:{':'.join(map(str, of))}" for kind, of in parts.items() if isinstance(of, list) and of]
    return ("?" if parts.get("satisfy") == "any" else ",").join(lists)


def _gres(counts: Mapping[str, Any] | None) -> str:
    return ",".join(f"{name}:{count}" for name, count in (counts or {}).items())


def _node_view(item: Item) -> NodeView:
    get = item.__getitem__
    reason = get("reason") or ""
    return NodeView(
        name=get("name"),
        state=states.parse_node(get("state")),
        reason=reason,
        reason_user=_text(get("reason_user")) if reason else "",
        reason_at=_moment(get("reason_time")) if reason else None,
        address=_text(get("address")),
        hostname=_text(get("hostname")),
        port=int(get("slurmd_port") or 0),
        boot_time=_moment(get("boot_time")),
        slurmd_start_time=_moment(get("slurmd_start_time")),
        last_busy_time=_moment(get("last_busy_time")),
        partitions=tuple(get("partitions")),
        features=tuple(get("available_features")),
        active_features=tuple(get("active_features")),
        gres=_gres(get("configured_gres")),
        cpus=int(get("total_cpus") or 0),
        cpus_alloc=int(get("allocated_cpus") or 0),
        memory_mb=int(get("real_memory") or 0),
        memory_alloc_mb=int(get("allocated_memory") or 0),
        version=_text(get("slurm_version")),
        os=_text(get("operating_system")),
        comment=get("comment") or "",
        extra={"Extra": str(get("extra"))} if get("extra") else {},
    )


def _partition_view(item: Item) -> PartitionView:
    get = item.__getitem__
    most, minutes = get("max_nodes"), get("max_time")
    return PartitionView(
        name=get("name"),
        state=get("state"),
        nodes=names(get("nodes")),
        hidden=bool(get("is_hidden")),
        max_nodes=most if isinstance(most, int) else None,
        max_time=UNLIMITED if minutes == _UNLIMITED else timedelta(minutes=minutes) if minutes else UNKNOWN,
        preempt_mode=_text(get("preempt_mode")),
        priority_tier=get("priority_tier") or 0,
    )
