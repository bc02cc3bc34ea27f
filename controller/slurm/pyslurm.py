"""The adapter for sites with pyslurm: Slurm's own library instead of its commands, behind the same port.

What pyslurm cannot do surely is done by the commands, in the open:
- tasks of an array and components of a het job are written by the commands: pyslurm names a job by one number, which
  Slurm then takes for one record where the commands mean the whole array. A job that was not read before is looked at
  first;
- `cancel_job` and `reserve_nodes`: pyslurm judges them by an errno that may be left over from an earlier call, and
  hides that a job to be cancelled is over or unknown;
- clearing a job's excluded nodes or its reservation: pyslurm sends "no change" for an empty value;
- the configuration, whose keys and values pyslurm gives other names and forms;
- what a reservation is, where there is one: pyslurm drops the flags that it has no name for;
- accounting: pyslurm keeps one record for each job id, and with that only the last start of a requeued job;
- job or node writes under credentials of their own: those are a prefix (sudo) that allows Slurm's commands alone.

Its calls run in a process of their own (`pyslurm_process`) within the same time limits as the commands. Errors carry
Slurm's own texts, so they are told apart by the same table (`refusals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from controller.errors import SlurmUnreadable
from controller.slurm import checked, jobids, parse_site, pyslurm_views, versions
from controller.slurm.calls import TimeLimits
from controller.slurm.port import SlurmPort
from controller.slurm.pyslurm_process import Asked
from controller.slurm.refusals import error_from, is_away
from controller.slurm.versions import Version
from controller.slurm.views import ClusterView, JobView, NodeView, PartitionView, PastJob, ReservationView


class Commands(SlurmPort, Protocol):
    """The adapter for Slurm's commands."""

    def read_config(self) -> Mapping[str, str]: ...

    def read_reservations(self) -> Mapping[str, ReservationView]: ...


@dataclass(slots=True)
class PySlurm:
    """SlurmPort through pyslurm. `release` is the Slurm that pyslurm was built for ("25.11"): another slurmctld is an
    error at each batched read, never read on a guess, and `outdated` from then on.

    `clock` gives the aware time that readings are stamped with. A writer of None leaves its writes to the commands.
    """

    clock: Callable[[], datetime]
    commands: Commands
    release: str
    reader: Asked
    job_writer: Asked | None
    node_writer: Asked | None
    limits: TimeLimits = field(default_factory=TimeLimits)
    outdated: bool = False
    _plain: set[int] = field(default_factory=set)  # ids seen to be neither an array's nor a het job's: so for good

    # reading

    def read_cluster(self) -> ClusterView:
        config = self.commands.read_config()
        self._check_release(config)
        partitions = pyslurm_views.partitions(self._read("partitions"))
        reservations = self.commands.read_reservations() if self._read("reservations") else {}
        nodes_at = self.clock()
        nodes = pyslurm_views.nodes(self._read("nodes", limit=self.limits.batch))
        jobs_at = self.clock()
        jobs = pyslurm_views.jobs(self._read("jobs", limit=self.limits.batch), partitions)
        self._plain = {job.raw_id for job in jobs if _is_plain(job)}
        return parse_site.cluster_view(
            config,
            nodes.values(),
            jobs,
            partitions=partitions,
            reservations=reservations,
            nodes_at=nodes_at,
            jobs_at=jobs_at,
        )

    def read_job(self, job_id: str) -> JobView | None:
        wanted = jobids.parse(checked.job(job_id))
        found = self.read_array(job_id)
        return next((job for job in found if wanted.names(job)), None)

    def read_array(self, job_id: str) -> list[JobView]:
        wanted = jobids.parse(checked.job(job_id))
        items = self._read("job", number=wanted.job)
        found = pyslurm_views.jobs(items, self._partitions_for(items))
        self._plain |= {job.raw_id for job in found if _is_plain(job)}
        return found

    def read_node(self, name: str) -> NodeView | None:
        item = self._read("node", name=checked.node(name))
        return None if item is None else pyslurm_views.nodes([item])[name]

    def read_reservation(self, name: str) -> ReservationView | None:
        known = checked.reservation(name) in self._read("reservations")
        return self.commands.read_reservation(name) if known else None

    def read_history(self, job_id: str, *, user: str, since: datetime) -> list[PastJob]:
        return self.commands.read_history(job_id, user=user, since=since)

    def ping(self) -> bool:
        answer = self.reader.ask("ping", {}, limit=self.limits.read, write=False)
        if "error" in answer and answer["by"] == "slurm" and is_away(answer["error"]):
            return False
        return bool(_value(answer, "ping", write=False))

    def version(self) -> Version:
        return self.commands.version()

    # writing: nodes and reservations

    def drain_node(self, name: str, reason: str) -> None:
        if not self._updated(name, state="DRAIN", reason=checked.line(reason)):
            self.commands.drain_node(name, reason)

    def down_node(self, name: str, reason: str) -> None:
        if not self._updated(name, state="DOWN", reason=checked.line(reason)):
            self.commands.down_node(name, reason)

    def resume_node(self, name: str) -> None:
        if not self._updated(name, state="RESUME"):
            self.commands.resume_node(name)

    def reserve_nodes(self, name: str, nodes: Sequence[str], *, user: str, minutes: int) -> None:
        self.commands.reserve_nodes(name, nodes, user=user, minutes=minutes)

    def delete_reservation(self, name: str) -> None:
        if not self._wrote(self.job_writer, "delete_reservation", name=checked.reservation(name)):
            self.commands.delete_reservation(name)

    # writing: jobs

    def hold_job(self, job_id: str) -> None:
        if not self._wrote_job("hold", job_id):
            self.commands.hold_job(job_id)

    def release_job(self, job_id: str) -> None:
        if not self._wrote_job("release", job_id):
            self.commands.release_job(job_id)

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        if not self._wrote_job("requeue", job_id, hold=hold):
            self.commands.requeue_job(job_id, hold=hold)

    def exclude_nodes(self, job_id: str, names: Sequence[str], *, start_time: Literal["now"] | None = None) -> None:
        changes = {"excluded_nodes": [checked.node(name) for name in names]}
        start = {"begin_time": start_time} if start_time else {}
        if not names or not self._wrote_job("modify", job_id, changes=changes | start):
            self.commands.exclude_nodes(job_id, names, start_time=start_time)

    def set_start_now(self, job_id: str) -> None:
        if not self._wrote_job("modify", job_id, changes={"begin_time": "now"}):
            self.commands.set_start_now(job_id)

    def set_reservation(self, job_id: str, name: str) -> None:
        changes = {"reservations": [checked.reservation(name)]} if name else {}
        if not changes or not self._wrote_job("modify", job_id, changes=changes):
            self.commands.set_reservation(job_id, name)

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        self.commands.cancel_job(job_id, signal=signal)

    def update_comment(self, job_id: str, comment: str) -> None:
        if not self._wrote_job("modify", job_id, changes={"comment": checked.line(comment)}):
            self.commands.update_comment(job_id, comment)

    # how

    def _check_release(self, config: Mapping[str, str]) -> None:
        version = versions.parse(config["SLURM_VERSION"])
        self.outdated = version.release != self.release
        if self.outdated:
            raise SlurmUnreadable(f"slurmctld is {version} now, pyslurm is for {self.release}")

    def _partitions_for(self, items: Iterable[Mapping[str, Any]]) -> Mapping[str, PartitionView]:
        """Asked only when the limit of one of these jobs may be its partition's."""
        needed = any(pyslurm_views.limit_is_open(item) for item in items)
        return pyslurm_views.partitions(self._read("partitions")) if needed else {}

    def _read(self, call: str, *, limit: float | None = None, **arguments: Any) -> Any:
        answer = self.reader.ask(call, arguments, limit=limit or self.limits.read, write=False)
        return _value(answer, call, write=False)

    def _updated(self, name: str, **changes: str) -> bool:
        return self._wrote(self.node_writer, "update_node", name=checked.node(name), changes=changes)

    def _wrote_job(self, call: str, job_id: str, **arguments: Any) -> bool:
        if not checked.job(job_id).isdecimal():
            return False
        number = int(job_id)
        return self._wrote(self.job_writer, call, number=number, sure=number in self._plain, **arguments)

    def _wrote(self, writer: Asked | None, call: str, **arguments: Any) -> bool:
        """False when nothing was sent: this write is the commands'."""
        if writer is None:
            return False
        answer = writer.ask(call, arguments, limit=self.limits.write, write=True)
        return bool(_value(answer, call, write=True))


def _is_plain(job: JobView) -> bool:
    return job.array_job_id is None and job.het_job_id is None


def _value(answer: Mapping[str, Any], call: str, *, write: bool) -> Any:
    if "error" not in answer:
        return answer["value"]
    if answer["by"] != "slurm":
        raise SlurmUnreadable(f"pyslurm {call}: {answer['error']}", text=answer["error"])
    raise error_from(answer["error"], call=f"pyslurm {call}", write=write and answer["sent"])
