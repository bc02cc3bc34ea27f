"""What Slurm says, as values: nodes, jobs, partitions, reservations, and the whole as one batched read.

The same values come from every adapter and every version; what a version adds that is not named here is kept in
`extra`, as printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from controller.slurm.durations import UNKNOWN, Duration
from controller.slurm.states import JobState, NodeState
from controller.slurm.versions import Version


class HoldKind(StrEnum):
    """Why a pending job is not to be started. Only `user` and `admin` are somebody's wish."""

    USER = "user"  # JobHeldUser: the owner's, or ours when the controller runs as the owner
    ADMIN = "admin"  # JobHeldAdmin: root's, SlurmUser's or an operator's: also ours
    LAUNCH_FAILED = "launch-failed"  # "launch failed requeued held"
    REQUEUE_LIMIT = "requeue-limit"  # "launch failure limit exceeded requeued held"
    REQUEUE_HOLD = "requeue-hold"  # "job requeued in held state"
    SPECIAL_EXIT = "special-exit"
    RESERVATION_DELETED = "reservation-deleted"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as Slurm sees it. Times are aware UTC, None where Slurm has none."""

    name: str
    state: NodeState
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    address: str = ""
    hostname: str = ""
    port: int = 0  # slurmd's
    boot_time: datetime | None = None
    slurmd_start_time: datetime | None = None
    last_busy_time: datetime | None = None
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    active_features: tuple[str, ...] = ()
    gres: str = ""
    cpus: int = 0
    cpus_alloc: int = 0
    memory_mb: int = 0
    memory_alloc_mb: int = 0
    tres: str = ""
    tres_alloc: str = ""
    version: str = ""
    os: str = ""
    comment: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)  # attributes not named above, as printed

    @property
    def occupied(self) -> bool:
        """Slurm has something allocated or completing on it."""
        return self.cpus_alloc > 0 or self.state.base in ("ALLOCATED", "MIXED") or self.state.completing


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, or one task of an array, or one component of a het job. Times are aware UTC, None where Slurm has none.

    `job_id` is Slurm's own spelling and what every write takes: "123", or "123_4" for a task of an array, or
    "123_[5-9%2]" for tasks that have not been split off yet. `raw_id` is the number that SLURM_JOB_ID holds inside
    the job; it differs from the array's. Slurm rewrites `submit_time` at each requeue, and reuses ids in the long run.
    """

    job_id: str
    raw_id: int
    state: JobState
    name: str = ""
    user: str = ""
    uid: int | None = None
    account: str = ""
    qos: str = ""
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_tasks: str = ""  # "5-9%2": tasks still in one pending record
    het_job_id: int | None = None
    het_job_offset: int | None = None
    partition: tuple[str, ...] = ()  # a pending job may wait for several
    reason: str = ""
    dependency: str = ""
    nodes: tuple[str, ...] = ()  # in Slurm's order; kept after the end, empty while pending
    batch_host: str = ""
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    features: str = ""
    reservation: str = ""
    batch: bool = True
    requeue: bool = False  # a permission (--requeue / --no-requeue), not a count
    restarts: int = 0
    priority: int | None = None
    hold_kind: HoldKind | None = None
    submit_time: datetime | None = None
    eligible_time: datetime | None = None
    start_time: datetime | None = None  # planned while pending
    end_time: datetime | None = None
    run_time: timedelta | None = None
    time_limit: Duration = UNKNOWN
    exit_code: int = 0
    exit_signal: int = 0
    comment: str = ""
    command: str = ""
    workdir: str = ""
    stdout: str = ""
    stderr: str = ""
    num_nodes: int = 0  # the least number asked for while pending
    num_tasks: int = 0
    num_cpus: int = 0
    tres: str = ""
    tres_per_node: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)  # attributes not named above, as printed

    @property
    def held(self) -> bool:
        return self.hold_kind is not None

    @property
    def is_het(self) -> bool:
        return self.het_job_id is not None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition, hidden ones included where Slurm shows them to us."""

    name: str
    state: str = "UP"  # UP, DOWN (runs on, starts nothing), DRAIN (takes no new jobs), INACTIVE
    nodes: tuple[str, ...] = ()
    hidden: bool = False
    max_nodes: int | None = None  # None: no limit
    max_time: Duration = UNKNOWN
    preempt_mode: str = ""
    priority_tier: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)  # attributes not named above, as printed

    @property
    def starts_jobs(self) -> bool:
        return self.state in ("UP", "DRAIN")


@dataclass(frozen=True, slots=True)
class ReservationView:
    """One reservation. Times are aware UTC, None where Slurm has none."""

    name: str
    nodes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partition: str = ""
    features: str = ""
    flags: frozenset[str] = frozenset()  # in Slurm's spelling: "MAINT", "IGNORE_JOBS", "SPEC_NODES"
    active: bool = False
    start_time: datetime | None = None
    end_time: datetime | None = None
    extra: Mapping[str, str] = field(default_factory=dict)  # attributes not named above, as printed


@dataclass(frozen=True, slots=True)
class PastJob:
    """What accounting (slurmdbd) remembers of one start of a job: a record of its own for each requeue."""

    job_id: str
    raw_id: int
    state: JobState
    user: str
    cluster: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    submit_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    exit_code: int = 0
    exit_signal: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One batched read. `*_at` are the moments the two calls were *sent*: every fact is at least as new as that."""

    cluster: str
    version: Version
    nodes: Mapping[str, NodeView]  # by name
    jobs: Mapping[str, JobView]  # by job_id
    nodes_at: datetime
    jobs_at: datetime
    next_job_id: int | None = None  # goes back when Slurm lost its state
    controller_boot_time: datetime | None = None
    private_data: tuple[str, ...] = ()  # not empty: a job that is missing may merely be hidden from us
    partitions: Mapping[str, PartitionView] = field(default_factory=dict)  # by name
    reservations: Mapping[str, ReservationView] = field(default_factory=dict)  # by name
    config: Mapping[str, str] = field(default_factory=dict)

    def job(self, job_id: str) -> JobView | None:
        """By Slurm's spelling ("2_1") or by the number inside the job ("3")."""
        found = self.jobs.get(job_id)
        if found is None and job_id.isdecimal():
            return next((job for job in self.jobs.values() if job.raw_id == int(job_id)), None)
        return found

    def jobs_on(self, node: str) -> list[JobView]:
        """Live jobs that hold or are still leaving `node`."""
        return [job for job in self.jobs.values() if job.state.live and node in job.nodes]
