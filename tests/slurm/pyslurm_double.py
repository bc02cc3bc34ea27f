"""A double of the module `pyslurm` on the in-memory Slurm, for the adapter's own logic where pyslurm is not installed.

It has what `pyslurm_worker` uses, and pyslurm's habits that the adapter must know: None for zero, no task 0, one record
for an array's id, a write to one record only. It is held honest by the same contract on the real pyslurm
(tests/cluster/test_pyslurm_real.py).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from controller.errors import SlurmError, SlurmTimeout, SlurmUnavailable
from controller.slurm import hostlist, pyslurm_worker
from controller.slurm.fake import FakeSlurm
from controller.slurm.views import JobView, NodeView, PartitionView, ReservationView

VERSION = "22.05.2"  # the in-memory Slurm's release


class RPCError(Exception):
    pass


def pyslurm_on(slurm: FakeSlurm) -> ModuleType:
    """What `import pyslurm` would give on a cluster that is `slurm`."""
    return cast(ModuleType, _Module(slurm))


class InThisProcess:
    """Answers the adapter without a process: through JSON all the same, and a hang is a time-out."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.module = pyslurm_on(slurm)
        self.asked: list[str] = []

    def ask(self, call: str, arguments: Mapping[str, Any], *, limit: float, write: bool) -> Mapping[str, Any]:
        assert limit > 0
        self.asked.append(call)
        question = json.loads(json.dumps({"call": call, "with": arguments}))
        try:
            return cast(dict[str, Any], json.loads(json.dumps(pyslurm_worker.answer(self.module, question))))
        except _Hangs:
            raise SlurmTimeout(f"pyslurm {call}: no answer", outcome_unknown=write) from None


class _Hangs(BaseException):
    """A call that does not return: past everything that catches errors."""


class _Module:
    __version__ = VERSION
    RPCError = RPCError

    def __init__(self, slurm: FakeSlurm) -> None:
        self._slurm = slurm
        loaded = SimpleNamespace
        self.Nodes = loaded(load=lambda: self._all("nodes", _node))
        self.Jobs = loaded(load=lambda: self._all("jobs", _job))
        self.Partitions = loaded(load=lambda: self._all("partitions", _partition))
        self.Reservations = loaded(load=lambda: self._all("reservations", _reservation))
        self.slurmctld = loaded(ping_primary=self._ping, ping_backup=self._no_backup)
        self.JobSubmitDescription = SimpleNamespace

    def _all(self, what: str, made: Callable[[Any], Any]) -> dict[str, Any]:
        views = self._do(lambda slurm: getattr(slurm.read_cluster(), what))
        return {name: made(view) for name, view in views.items()}

    def _do(self, call: Callable[[FakeSlurm], Any]) -> Any:
        try:
            return call(self._slurm)
        except SlurmTimeout:
            raise _Hangs from None
        except SlurmUnavailable as error:
            raise RPCError("Socket timed out on send/recv operation") from error
        except SlurmError as error:
            raise RPCError(error.text) from error

    def _ping(self) -> Any:
        if not self._slurm.ping():
            raise RPCError("Unable to contact slurm controller (connect failure)")
        return SimpleNamespace(is_responding=True)

    @staticmethod
    def _no_backup() -> Any:
        raise RPCError("Unable to contact slurm controller (connect failure)")

    @property
    def Node(self) -> Any:
        return _Caller(_NodeHandle, self)

    @property
    def Job(self) -> Any:
        return _Caller(_JobHandle, self)

    def Reservation(self, name: str) -> Any:
        return SimpleNamespace(delete=lambda: self._do(lambda slurm: slurm.delete_reservation(name)))


class _Caller:
    """A class with `load` beside its constructor."""

    def __init__(self, handle: Any, module: _Module) -> None:
        self._handle, self._module = handle, module

    def __call__(self, key: Any = None, **changes: Any) -> Any:
        return self._handle(self._module, key, changes)

    def load(self, key: Any) -> Any:
        return self._handle(self._module, key, {}).loaded()


class _NodeHandle:
    def __init__(self, module: _Module, name: str, changes: Mapping[str, str]) -> None:
        self._module, self._name, self.changes = module, name, changes

    def loaded(self) -> Any:
        view = self._module._do(lambda slurm: slurm.read_node(self._name))
        if view is None:
            raise RPCError(f"Node '{self._name}' does not exist")
        return _node(view)

    def modify(self, wanted: _NodeHandle) -> None:
        state, reason = wanted.changes["state"], wanted.changes.get("reason", "")
        writes: dict[str, Callable[[FakeSlurm], None]] = {
            "DRAIN": lambda slurm: slurm.drain_node(self._name, reason),
            "DOWN": lambda slurm: slurm.down_node(self._name, reason),
            "RESUME": lambda slurm: slurm.resume_node(self._name),
        }
        self._module._do(writes[state])


class _JobHandle:
    def __init__(self, module: _Module, number: int, changes: Mapping[str, str]) -> None:
        self._module, self._id = module, str(number)

    def loaded(self) -> Any:
        found = self._module._do(lambda slurm: slurm.read_array(self._id))
        if not found:
            raise RPCError("Invalid job id specified")
        return _job(found[0])

    def hold(self) -> None:
        self._module._do(lambda slurm: slurm.hold_job(self._id))

    def release(self) -> None:
        self._module._do(lambda slurm: slurm.release_job(self._id))

    def requeue(self, hold: bool) -> None:
        self._module._do(lambda slurm: slurm.requeue_job(self._id, hold=hold))

    def modify(self, wanted: Any) -> None:
        changes = vars(wanted)
        if "excluded_nodes" in changes:
            names, start = changes["excluded_nodes"], changes.get("begin_time")
            self._module._do(lambda slurm: slurm.exclude_nodes(self._id, names, start_time=start))
        elif "begin_time" in changes:
            self._module._do(lambda slurm: slurm.set_start_now(self._id))
        elif "reservations" in changes:
            self._module._do(lambda slurm: slurm.set_reservation(self._id, changes["reservations"][0]))
        else:
            self._module._do(lambda slurm: slurm.update_comment(self._id, changes["comment"]))


def _epoch(at: datetime | None) -> int | None:
    return int(at.timestamp()) if at else None


def _folded(names: tuple[str, ...]) -> str | None:
    return hostlist.fold(names) or None


def _job(view: JobView) -> Any:
    limit = view.time_limit
    waiting, _, at_once = view.array_tasks.partition("%")
    return SimpleNamespace(
        id=view.raw_id,
        name=view.name or None,
        user_id=zlib.crc32(view.user.encode()),  # the in-memory Slurm knows names only
        user_name=view.user,
        account=view.account or None,
        qos=view.qos or None,
        array_id=view.array_job_id,
        array_task_id=view.array_task_id or None,
        array_tasks_waiting=waiting or None,
        array_tasks_parallel=int(at_once) if at_once else None,
        heterogeneous_id=view.het_job_id,
        heterogeneous_offset=view.het_job_offset or None,
        partition=",".join(view.partition) or None,
        state="COMPLETING" if view.state.completing else view.state.base,
        state_reason=view.reason or "None",
        dependencies=None,
        allocated_nodes=_folded(view.nodes),
        batch_host=view.batch_host or None,
        excluded_nodes=_folded(view.excluded_nodes),
        required_nodes=_folded(view.required_nodes),
        constraints=view.features.split(",") if view.features else [],
        reservation=view.reservation or None,
        is_batch_job=view.batch,
        is_requeueable=view.requeue,
        requeue_count=view.restarts or None,
        priority=view.priority,
        submit_time=_epoch(view.submit_time),
        eligible_time=_epoch(view.eligible_time),
        start_time=_epoch(view.start_time),
        end_time=_epoch(view.end_time),
        run_time=int(view.run_time.total_seconds()) if view.run_time else None,
        time_limit=int(limit.total_seconds() // 60) if isinstance(limit, timedelta) else None,
        exit_code=view.exit_code,
        exit_code_signal=view.exit_signal,
        comment=view.comment or None,
        command=view.command or None,
        working_directory=view.workdir or None,
        standard_output=view.stdout or None,
        standard_error=view.stderr or None,
        num_nodes=view.num_nodes or None,
        ntasks=view.num_tasks or 1,
        cpus=view.num_cpus or 1,
        gres_per_node={},
        burst_buffer=view.extra.get("BurstBuffer"),
        container=view.extra.get("Container"),
        federation_origin=view.extra.get("FedOrigin"),
        submit_line=view.extra.get("SubmitLine"),
    )


def _node(view: NodeView) -> Any:
    return SimpleNamespace(
        name=view.name,
        state="+".join([view.state.base, *sorted(view.state.flags)]),
        reason=view.reason or None,
        reason_user=view.reason_user or "root",  # the name of uid 0, also where nobody set a reason
        reason_time=_epoch(view.reason_at),
        address=view.address,
        hostname=view.hostname,
        slurmd_port=view.port or None,
        boot_time=_epoch(view.boot_time),
        slurmd_start_time=_epoch(view.slurmd_start_time),
        last_busy_time=_epoch(view.last_busy_time),
        partitions=list(view.partitions),
        available_features=list(view.features),
        active_features=list(view.active_features),
        configured_gres={},
        total_cpus=view.cpus,
        allocated_cpus=view.cpus_alloc,
        real_memory=view.memory_mb or None,
        allocated_memory=view.memory_alloc_mb,
        slurm_version=view.version or None,
        operating_system=view.os or None,
        comment=view.comment or None,
        extra=None,
    )


def _partition(view: PartitionView) -> Any:
    limit = view.max_time
    return SimpleNamespace(
        name=view.name,
        state=view.state,
        nodes=_folded(view.nodes),
        is_hidden=view.hidden,
        max_nodes=view.max_nodes or "UNLIMITED",
        max_time=int(limit.total_seconds() // 60) if isinstance(limit, timedelta) else "UNLIMITED",
        preempt_mode=view.preempt_mode or None,
        priority_tier=view.priority_tier or None,
    )


def _reservation(view: ReservationView) -> Any:
    return SimpleNamespace(name=view.name)
