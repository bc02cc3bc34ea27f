"""How the in-memory Slurm behaves: the rules seen on a real one, as functions of (world, now, options).

Kept honest by the contract test that also runs against a real Slurm.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.errors import RefusalKind, SlurmRefused
from controller.slurm.fake_world import Effect, FakeJob, FakeNode, World

TERMINAL = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"})
REQUEUE_HELD = "job_requeued_in_held_state"
_TEXTS = {
    RefusalKind.INVALID_JOB: "Invalid job id specified",
    RefusalKind.JOB_FINISHED: "Job has already finished",
    RefusalKind.NOT_REQUEUEABLE: "Requested operation is presently disabled",
    RefusalKind.ALREADY_PENDING: "Job is pending execution",
    RefusalKind.NOT_PENDING: "Job is no longer pending execution",
    RefusalKind.BUSY: "Job can not be altered now, try again later",
    RefusalKind.BAD_NODES: "Invalid node name specified",
    RefusalKind.BAD_REQUEST: "Invalid node state specified",
    RefusalKind.NOT_PERMITTED: "Access/permission denied",
}


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """Times in seconds. `completing_reads` makes a job look COMPLETING for that many readings on top of the time."""

    completing: float = 1.0
    completing_reads: int = 0
    requeue_delay: float = 121.0
    too_quick_start: float = 0.0  # a start sooner than this after a kill fails: "job credential revoked"
    not_responding_after: float = 2.0
    slurmd_timeout: float = 300.0
    return_to_service: bool = True  # ReturnToService=2
    auto_tick: bool = True  # every call first lets the scheduler run


def refusal(kind: RefusalKind, target: str) -> SlurmRefused:
    text = _TEXTS.get(kind, "Unspecified refusal")
    return SlurmRefused(f"{target}: {text}", kind=kind, text=text)


def find_job(world: World, job_id: str) -> FakeJob:
    job = look_up(world, job_id)
    if job is None:
        raise refusal(RefusalKind.INVALID_JOB, job_id)
    return job


def look_up(world: World, job_id: str) -> FakeJob | None:
    """By Slurm's spelling, or by the number inside the job."""
    by_number = (job for job in world.jobs.values() if str(job.raw_id) == job_id)
    return world.jobs.get(job_id) or next(by_number, None)


def find_node(world: World, name: str) -> FakeNode:
    if name not in world.nodes:
        raise refusal(RefusalKind.BAD_NODES, name)
    return world.nodes[name]


def record(world: World, kind: str, target: str, now: float, detail: str = "") -> None:
    world.log.append(Effect(kind=kind, target=target, at=now, detail=detail))


# time passes


def advance(world: World, now: float, options: FakeOptions) -> None:
    """Everything but the scheduler: completions, silent slurmds, nodes that come back."""
    for job in world.jobs.values():
        if job.completing_until is not None and job.completing_until <= now and not job.completing_reads:
            _completed(job, now, options)
    for node in world.nodes.values():
        if node.slurmd_dead_since is not None:
            _silent(world, node, now, options)
        elif node.down and options.return_to_service:
            node.down = False  # DRAIN, with its reason, survives this
            if not node.drain:
                node.reason, node.reason_user, node.reason_at = "", "", 0.0


def schedule(world: World, now: float, options: FakeOptions) -> None:
    """Start what may start, in order of submission."""
    for job in sorted(world.jobs.values(), key=lambda each: each.raw_id):
        if job.base != "PENDING" or job.completing or job.held:
            continue
        job.bad_constraints = len(_eligible(world, job)) < job.num_nodes
        if job.bad_constraints:
            job.reason = "BadConstraints"
            continue
        if job.begin_time > now:
            job.reason = "BeginTime"
            continue
        free = [node.name for node in _eligible(world, job) if _takes(world, node, job)]
        job.reason = "" if len(free) >= job.num_nodes else "Resources"
        if not job.reason:
            _start(job, [*job.required, *(name for name in free if name not in job.required)], now, options)


def _completed(job: FakeJob, now: float, options: FakeOptions) -> None:
    job.completing_until = None
    if job.base == "PENDING":
        # The requeue delay is set now, over whatever StartTime was asked for in the meantime.
        job.nodes, job.submit_time, job.begin_time = [], now, now + options.requeue_delay
        job.start_time = job.end_time = None


def _silent(world: World, node: FakeNode, now: float, options: FakeOptions) -> None:
    assert node.slurmd_dead_since is not None
    if not node.down and now - node.slurmd_dead_since >= options.slurmd_timeout:
        if not node.drain:
            node.reason, node.reason_user, node.reason_at = "Not responding", "slurm", now
        take_down(world, node, now, options)


def _eligible(world: World, job: FakeJob) -> list[FakeNode]:
    """Nodes that the job's own wishes leave, in whatever state they are."""
    return [
        node
        for node in world.nodes.values()
        if node.name not in job.excluded and set(node.partitions) & set(job.partition)
    ]


def _takes(world: World, node: FakeNode, job: FakeJob) -> bool:
    used = sum(other.cpus_per_node for other in world.jobs.values() if node.name in other.nodes and occupies(other))
    out = node.down or node.drain or node.slurmd_dead_since is not None or bool(node.flags)
    return not out and used + job.cpus_per_node <= node.cpus


def occupies(job: FakeJob) -> bool:
    return job.base == "RUNNING" or job.completing


def _start(job: FakeJob, free: list[str], now: float, options: FakeOptions) -> None:
    job.nodes, job.start_time, job.base = free[: job.num_nodes], now, "RUNNING"
    if job.killed_at is not None and now - job.killed_at < options.too_quick_start:
        end(job, "FAILED", now, options, reason="NonZeroExitCode", exit_code=1)


# what ends jobs


def end(
    job: FakeJob, base: str, now: float, options: FakeOptions, *, reason: str = "", exit_code: int = 0, sent: int = 0
) -> None:
    if job.nodes and not job.completing:
        job.completing_until, job.completing_reads = now + options.completing, options.completing_reads
    job.base, job.reason, job.end_time = base, reason, now
    job.exit_code, job.exit_signal = exit_code, sent


def kill_and_requeue(job: FakeJob, now: float, options: FakeOptions, *, hold: bool) -> None:
    end(job, "PENDING", now, options)
    job.restarts += 1
    job.killed_at = now
    if not job.completing:
        _completed(job, now, options)
    if hold:
        job.held = REQUEUE_HELD


def take_down(world: World, node: FakeNode, now: float, options: FakeOptions) -> None:
    """DOWN kills all that runs there: what may be requeued is, the rest ends NODE_FAIL, whoever's it is."""
    node.down = True
    for job in world.jobs.values():
        if node.name in job.nodes and job.base == "RUNNING":
            if job.requeue and job.batch:
                kill_and_requeue(job, now, options, hold=False)
            else:
                end(job, "NODE_FAIL", now, options)


# writes


def drain(world: World, node: FakeNode, reason: str, user: str, now: float) -> None:
    node.drain = True
    node.reason, node.reason_user, node.reason_at = reason, user, now
    record(world, "drain", node.name, now, reason)


def down(world: World, node: FakeNode, reason: str, user: str, now: float, options: FakeOptions) -> None:
    node.reason, node.reason_user, node.reason_at = reason, user, now
    take_down(world, node, now, options)
    record(world, "down", node.name, now, reason)


def resume(world: World, node: FakeNode, now: float) -> None:
    if not node.drain and not node.down:
        raise refusal(RefusalKind.BAD_REQUEST, node.name)
    node.drain = node.down = False
    node.reason, node.reason_user, node.reason_at = "", "", 0.0
    record(world, "resume", node.name, now)


def requeue(world: World, job: FakeJob, hold: bool, now: float, options: FakeOptions) -> None:
    if job.base == "PENDING":
        raise refusal(RefusalKind.ALREADY_PENDING, job.job_id)
    if not job.requeue or not job.batch:
        raise refusal(RefusalKind.NOT_REQUEUEABLE, job.job_id)
    kill_and_requeue(job, now, options, hold=hold)
    record(world, "requeuehold" if hold else "requeue", job.job_id, now)


def hold(world: World, job: FakeJob, reason: str, now: float) -> None:
    _unfinished(job)
    job.held = job.held or reason
    record(world, "hold", job.job_id, now)


def release(world: World, job: FakeJob, now: float) -> None:
    _unfinished(job)
    job.held = job.reason = ""
    record(world, "release", job.job_id, now)


def exclude(world: World, job: FakeJob, names: list[str], start_now: bool, now: float) -> None:
    _unfinished(job)
    for name in names:
        find_node(world, name)
    if job.base != "PENDING" and names != job.excluded:
        raise refusal(RefusalKind.NOT_PENDING, job.job_id)
    if start_now:
        _pending(job).begin_time = now
    job.excluded = list(names)
    if job.bad_constraints:
        job.bad_constraints, job.reason = False, ""
    record(world, "exclude", job.job_id, now, ",".join(names))


def start_now(world: World, job: FakeJob, now: float) -> None:
    _unfinished(job)
    _pending(job).begin_time = now
    record(world, "start_now", job.job_id, now)


def cancel(world: World, job: FakeJob, sent: str, now: float, options: FakeOptions) -> None:
    _unfinished(job)
    if not sent:
        was_running = job.base == "RUNNING"
        job.held = ""
        end(job, "CANCELLED", now, options, sent=15 if was_running else 0)
    record(world, "signal" if sent else "cancel", job.job_id, now, sent)


def comment(world: World, job: FakeJob, text: str, now: float) -> None:
    _unfinished(job)
    job.comment = text
    record(world, "comment", job.job_id, now, text)


def _unfinished(job: FakeJob) -> None:
    if job.base in TERMINAL:
        raise refusal(RefusalKind.JOB_FINISHED, job.job_id)


def _pending(job: FakeJob) -> FakeJob:
    if job.base != "PENDING":
        raise refusal(RefusalKind.NOT_PENDING, job.job_id)
    return job
