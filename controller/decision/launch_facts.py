"""What is known of a job's starts, and of how Slurm starts again. Plain values, as in `facts`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StartFact:
    """Where Slurm last started the job, as far as it was seen: `restarts` is the count of that start."""

    restarts: int
    host: str
    nodes: tuple[str, ...] = ()
    start_at: float | None = None


@dataclass(frozen=True)
class LaunchFact:
    """A start that failed earlier, this job's or another's, as its incident remembers it. `restarts`: of that start;
    `code`: of the sign that showed it."""

    run_id: str
    cause: str
    code: str
    hosts: tuple[str, ...]
    restarts: int
    at: float


@dataclass(frozen=True)
class SchedulerFact:
    """What slurm.conf says about starting again. `max_batch_requeue`: so many failed launches, and Slurm holds the job
    (5 where the version has no such setting). `job_requeue`: whether jobs may be requeued unless they say otherwise.
    `accounting`: whether the cluster keeps any."""

    max_batch_requeue: int = 5
    job_requeue: bool = True
    accounting: bool = False
