"""pyslurm in a process of its own: one question a line (JSON) on stdin, one answer a line on stdout.

A process, because pyslurm keeps the interpreter's lock for as long as a call takes and no thread can end it, because a
missing slurm.conf makes Slurm's library end the process that imports it, and because every identity needs one.

Run by path as `python -P`: beside this file is a `pyslurm.py` which would hide the real one. It imports nothing of
Relume, and ends when its stdin closes or when nobody asked anything for IDLE_S.

Question: `{"call": name, "with": {arguments}}`. Answer: `{"value": ...}`, or `{"error": text, "by": who, "sent": bool}`
where `by` is slurm, pyslurm or import, and `sent` is false when a write was not even tried. pyslurm names a job by one
number, which may mean more or less than that: a job write whose asker is not `sure` that the job is a plain one looks
first, and answers with a value of false when it is not.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

IDLE_S = 300.0

Item = dict[str, Any]

# fmt: off
JOB = (
    "id", "name", "user_id", "account", "qos", "array_id", "array_task_id", "array_tasks_waiting",
    "array_tasks_parallel", "heterogeneous_id", "heterogeneous_offset", "partition", "state", "state_reason",
    "dependencies", "allocated_nodes", "batch_host", "excluded_nodes", "required_nodes", "constraints", "reservation",
    "is_batch_job", "is_requeueable", "requeue_count", "priority", "submit_time", "eligible_time", "start_time",
    "end_time", "run_time", "time_limit", "exit_code", "exit_code_signal", "comment", "command", "working_directory",
    "standard_output", "standard_error", "num_nodes", "ntasks", "cpus", "gres_per_node", "burst_buffer", "container",
    "federation_origin", "submit_line",
)
NODE = (
    "name", "state", "reason", "reason_user", "reason_time", "address", "hostname", "slurmd_port", "boot_time",
    "slurmd_start_time", "last_busy_time", "partitions", "available_features", "active_features", "configured_gres",
    "total_cpus", "allocated_cpus", "real_memory", "allocated_memory", "slurm_version", "operating_system", "comment",
    "extra",
)
PARTITION = ("name", "state", "nodes", "is_hidden", "max_nodes", "max_time", "preempt_mode", "priority_tier")
# fmt: on


def _picked(thing: Any, keys: Iterable[str]) -> Item:
    return {key: getattr(thing, key) for key in keys}


_user_names: dict[int, str | None] = {}


def _job(job: Any) -> Item:
    """The owner's name is asked of the system once for each user, not for each job."""
    item = _picked(job, JOB)
    uid = item["user_id"]
    if uid not in _user_names:
        _user_names[uid] = job.user_name
    return item | {"user_name": _user_names[uid]}


# reading


def _nodes(slurm: ModuleType) -> list[Item]:
    return [_picked(node, NODE) for node in slurm.Nodes.load().values()]


def _jobs(slurm: ModuleType) -> list[Item]:
    return [_job(job) for job in slurm.Jobs.load().values()]


def _partitions(slurm: ModuleType) -> list[Item]:
    return [_picked(partition, PARTITION) for partition in slurm.Partitions.load().values()]


def _reservations(slurm: ModuleType) -> list[str]:
    """Their names alone: pyslurm drops flags that it has no name for."""
    return [reservation.name for reservation in slurm.Reservations.load().values()]


def _records(slurm: ModuleType, number: int) -> list[Item]:
    """Every record of this id: a job's own, or those of its array or het job.

    Asked for one id, pyslurm gives one record only and none in a hidden partition: those are looked for among all.
    """
    try:
        job = slurm.Job.load(number)
        if job.id == number and not job.array_id and not job.heterogeneous_id:
            return [_job(job)]
    except slurm.RPCError as error:
        if "invalid job id" not in str(error).lower():
            raise
    of = (job for job in slurm.Jobs.load().values() if number in (job.id, job.array_id, job.heterogeneous_id))
    return [_job(job) for job in of]


def _node(slurm: ModuleType, name: str) -> Item | None:
    try:
        return _picked(slurm.Node.load(name), NODE)
    except slurm.RPCError as error:
        if "does not exist" in str(error) or "invalid node name" in str(error).lower():
            return None
        raise


def _ping(slurm: ModuleType) -> bool:
    """The first backup is asked when the first slurmctld does not answer; its error is the one that is told."""
    try:
        return bool(slurm.slurmctld.ping_primary().is_responding)
    except slurm.RPCError:
        try:
            return bool(slurm.slurmctld.ping_backup().is_responding)
        except slurm.RPCError:
            pass
        raise


# writing


def _update_node(slurm: ModuleType, name: str, changes: Mapping[str, str]) -> bool:
    slurm.Node(name).modify(slurm.Node(**changes))
    return True


def _delete_reservation(slurm: ModuleType, name: str) -> bool:
    slurm.Reservation(name).delete()
    return True


def _hold(slurm: ModuleType, number: int, sure: bool) -> bool:
    return _on_plain_job(slurm, number, sure, lambda job: job.hold())


def _release(slurm: ModuleType, number: int, sure: bool) -> bool:
    return _on_plain_job(slurm, number, sure, lambda job: job.release())


def _requeue(slurm: ModuleType, number: int, sure: bool, hold: bool) -> bool:
    return _on_plain_job(slurm, number, sure, lambda job: job.requeue(hold=hold))


def _modify(slurm: ModuleType, number: int, sure: bool, changes: Mapping[str, Any]) -> bool:
    return _on_plain_job(slurm, number, sure, lambda job: job.modify(slurm.JobSubmitDescription(**changes)))


class NotSent(Exception):
    """Slurm failed at the look before the write."""


def _on_plain_job(slurm: ModuleType, number: int, sure: bool, write: Callable[[Any], None]) -> bool:
    if not sure and not _looks_plain(slurm, number):
        return False
    write(slurm.Job(number))
    return True


def _looks_plain(slurm: ModuleType, number: int) -> bool:
    try:
        records = _records(slurm, number)
    except slurm.RPCError as error:
        raise NotSent(str(error)) from error
    return len(records) == 1 and not records[0]["array_id"] and not records[0]["heterogeneous_id"]


CALLS: dict[str, Callable[..., Any]] = {
    "version": lambda slurm: slurm.__version__,
    "nodes": _nodes,
    "jobs": _jobs,
    "partitions": _partitions,
    "reservations": _reservations,
    "job": _records,
    "node": _node,
    "ping": _ping,
    "update_node": _update_node,
    "delete_reservation": _delete_reservation,
    "hold": _hold,
    "release": _release,
    "requeue": _requeue,
    "modify": _modify,
}


def answer(slurm: ModuleType, question: Mapping[str, Any]) -> Item:
    """Never raises for anything that Slurm or pyslurm does."""
    try:
        return {"value": CALLS[question["call"]](slurm, **question["with"])}
    except NotSent as error:
        return {"error": str(error), "by": "slurm", "sent": False}
    except slurm.RPCError as error:
        return {"error": str(error), "by": "slurm", "sent": True}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "by": "pyslurm", "sent": False}


def _line(out: int, item: Item) -> None:
    text = json.dumps(item, default=str).encode() + b"\n"
    while text:
        text = text[os.write(out, text) :]


def main() -> None:
    out = os.dup(1)  # Slurm's library may print: only our lines reach the one who asked
    os.dup2(2, 1)
    try:
        import pyslurm as slurm
    except Exception as error:
        _line(out, {"error": f"{type(error).__name__}: {error}", "by": "import", "sent": False})
        return
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (question := sys.stdin.readline()):
        _line(out, answer(slurm, json.loads(question)))


if __name__ == "__main__":
    main()
