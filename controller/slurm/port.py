"""What Relume needs of Slurm: one port, its value types, and nothing about how the answer is fetched.

Rules that hold for every adapter:
- each method is one attempt with a time limit; nothing is retried inside. Errors are those of `controller.errors`;
- a failed or unreadable call raises: it is never an empty answer and never a state;
- a write that raises SlurmUnavailable with `outcome_unknown` may take effect later: re-read before anything else;
- drain, down, resume, hold, release, exclude and comment may be repeated; requeue and cancel may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

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
    def is_array_task(self) -> bool:
        return self.array_task_id is not None

    @property
    def is_het(self) -> bool:
        return self.het_job_id is not None


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


@runtime_checkable
class SlurmPort(Protocol):
    """See the module's text for the rules. Job ids are strings in Slurm's spelling."""

    # reading
    def read_cluster(self) -> ClusterView:
        """Nodes, jobs and configuration at once."""
        ...

    def read_job(self, job_id: str) -> JobView | None:
        """None only when Slurm itself says that it does not know this id."""
        ...

    def read_array(self, job_id: str) -> list[JobView]:
        """Every record of an array, het job or plain job; [] only when Slurm says that it does not know the id."""
        ...

    def read_node(self, name: str) -> NodeView | None:
        """None only when Slurm itself says that it does not know this node."""
        ...

    def ping(self) -> bool:
        """True when a slurmctld answers; False when Slurm's own tool says that none does. Raises on a time-out."""
        ...

    def version(self) -> Version:
        """Of the running slurmctld."""
        ...

    # writing: nodes (AdminLevel, SlurmUser or root)
    def drain_node(self, name: str, reason: str) -> None:
        """Nothing new starts there; what runs goes on. Replaces a reason that is there: look first."""
        ...

    def down_node(self, name: str, reason: str) -> None:
        """Kills every job on it, requeues those that may be: NODE_FAIL for the others, strangers' included."""
        ...

    def resume_node(self, name: str) -> None:
        """Clears DRAIN and DOWN, and the reason, whoever set them: look first."""
        ...

    # writing: jobs (operator, owner or root)
    def hold_job(self, job_id: str) -> None: ...

    def release_job(self, job_id: str) -> None:
        """Clears every kind of hold, whoever's: look first. Wakes the scheduler."""
        ...

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        """Kills and queues it again. NOT idempotent: a second one kills the new attempt."""
        ...

    def exclude_nodes(self, job_id: str, names: Sequence[str], *, start_time: Literal["now"] | None = None) -> None:
        """Replaces the whole ExcNodeList of a pending job (an empty `names` clears it), in the same call with
        StartTime=now where asked. Fails whole on one unknown name."""
        ...

    def set_start_now(self, job_id: str) -> None:
        """StartTime=now. Without effect while the job is COMPLETING: Slurm overwrites it with its requeue delay."""
        ...

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        """Cancels, or with `signal` ("USR2") only signals the job's steps. NOT idempotent for a signal."""
        ...

    def update_comment(self, job_id: str, comment: str) -> None: ...
