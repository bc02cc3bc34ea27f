"""How the in-memory Slurm behaves: the rules seen on a real one, as functions of (world, now, options).

Kept honest by the contract test that also runs against a real Slurm.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.errors import RefusalKind, SlurmRefused
from controller.slurm.fake_world import Effect, FakeJob, FakeNode, FakePartition, FakePast, FakeReservation, World

TERMINAL = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"})
REQUEUE_HELD = "job_requeued_in_held_state"
RESERVATION_DELETED = "reservation_deleted"
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
    RefusalKind.EXISTS: "Reservation name already exists",
    RefusalKind.OVERLAPS: "Requested reservation overlaps with another reservation",
    RefusalKind.IN_USE: "Requested reservation is in use",
    RefusalKind.INVALID_RESERVATION: "Requested reservation is invalid",
    RefusalKind.DISABLED: "Slurm accounting storage is disabled",
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
    accounting: bool = True  # a slurmdbd keeps every start
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
    others = (job for job in world.jobs.values() if job_id in (str(job.raw_id), f"{job.het_job_id}+{job.het_offset}"))
    return world.jobs.get(job_id) or next(others, None)


def all_of(world: World, job_id: str) -> list[FakeJob]:
    """What a write to this id touches: every component of a het job when it is named by its own number."""
    job = find_job(world, job_id)
    whole = job.het_job_id is not None and job_id == str(job.het_job_id)
    return [each for each in world.jobs.values() if each.het_job_id == job.het_job_id] if whole else [job]


def find_node(world: World, name: str) -> FakeNode:
    if name not in world.nodes:
        raise refusal(RefusalKind.BAD_NODES, name)
    return world.nodes[name]


def record(world: World, kind: str, target: str, now: float, detail: str = "") -> None:
    world.log.append(Effect(kind=kind, target=target, at=now, detail=detail))


# time passes


def advance(world: World, now: float, options: FakeOptions) -> None:
    """Everything but the scheduler: completions, silent slurmds, nodes that come back, reservations that end."""
    for job in world.jobs.values():
        if job.completing_until is not None and job.completing_until <= now and not job.completing_reads:
            _completed(job, now, options)
        _out_of_time(world, job, now, options)
    for node in world.nodes.values():
        if node.slurmd_dead_since is not None:
            _silent(world, node, now, options)
        elif node.down and options.return_to_service:
            node.down = False  # DRAIN, with its reason, survives this
            if not node.drain:
                node.reason, node.reason_user, node.reason_at = "", "", 0.0
    for reservation in [each for each in world.reservations.values() if each.end <= now]:
        _reservation_ends(world, reservation)


def _out_of_time(world: World, job: FakeJob, now: float, options: FakeOptions) -> None:
    """Ended, and not queued again: that is not Slurm's to do."""
    if job.base != "RUNNING" or job.time_limit_s is None or job.start_time is None:
        return
    if now - job.start_time >= job.time_limit_s:
        end(world, job, "TIMEOUT", now, options, reason="TimeLimit", sent=15)


def _reservation_ends(world: World, reservation: FakeReservation) -> None:
    """What still waits in it is held, unless its flags say otherwise; what runs there with FLEX runs on."""
    del world.reservations[reservation.name]
    for job in world.jobs.values():
        if job.reservation == reservation.name and job.base not in TERMINAL:
            job.reservation = ""
            if job.base == "PENDING" and "NO_HOLD_JOBS_AFTER_END" not in reservation.flags:
                job.held = RESERVATION_DELETED


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
        if job.het_job_id is not None and not _whole_may_start(world, job, now):
            continue
        free = _free(world, job, now)
        job.reason = "" if len(free) >= job.num_nodes else "Resources"
        if not job.reason:
            _start(world, job, [*job.required, *(name for name in free if name not in job.required)], now, options)


def _whole_may_start(world: World, job: FakeJob, now: float) -> bool:
    """The components of a het job start together: none is held, completing or early."""
    parts = [each for each in world.jobs.values() if each.het_job_id == job.het_job_id]
    return not any(each.held or each.completing or each.begin_time > now for each in parts)


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
    opened = {name for name in job.partition if _partition(world, name).state == "UP"}
    wanted = set(job.features.split("&")) if job.features else set()
    return [
        node
        for node in world.nodes.values()
        if node.name not in job.excluded and set(node.partitions) & opened and wanted <= set(node.features)
    ]


def _partition(world: World, name: str) -> FakePartition:
    return world.partitions.get(name) or FakePartition(name)


def _free(world: World, job: FakeJob, now: float) -> list[str]:
    """Where it could start now, its own reservation's nodes first."""
    own = world.reservations.get(job.reservation)
    names = [node.name for node in _eligible(world, job) if _takes(world, node, job, now)]
    return sorted(names, key=lambda name: own is None or name not in own.nodes)


def _takes(world: World, node: FakeNode, job: FakeJob, now: float) -> bool:
    used = sum(other.cpus_per_node for other in world.jobs.values() if node.name in other.nodes and occupies(other))
    out = node.down or node.drain or node.slurmd_dead_since is not None or bool(node.flags)
    return not out and used + job.cpus_per_node <= node.cpus and _reserved_for(world, node, job, now)


def _reserved_for(world: World, node: FakeNode, job: FakeJob, now: float) -> bool:
    """Nobody's, or the job's own reservation; one without FLEX keeps its job to its own nodes."""
    there = active_reservations(world, node.name, now)
    own = world.reservations.get(job.reservation)
    bound = own is not None and "FLEX" not in own.flags and node.name not in own.nodes
    return not bound and all(each.name == job.reservation for each in there)


def active_reservations(world: World, node: str, now: float) -> list[FakeReservation]:
    return [each for each in world.reservations.values() if node in each.nodes and each.start <= now < each.end]


def occupies(job: FakeJob) -> bool:
    return job.base == "RUNNING" or job.completing


def _start(world: World, job: FakeJob, free: list[str], now: float, options: FakeOptions) -> None:
    job.nodes, job.start_time, job.base = free[: job.num_nodes], now, "RUNNING"
    if job.killed_at is not None and now - job.killed_at < options.too_quick_start:
        end(world, job, "FAILED", now, options, reason="NonZeroExitCode", exit_code=1)


# what ends jobs


def end(
    world: World,
    job: FakeJob,
    base: str,
    now: float,
    options: FakeOptions,
    *,
    reason: str = "",
    exit_code: int = 0,
    sent: int = 0,
) -> None:
    if job.nodes and not job.completing:
        job.completing_until, job.completing_reads = now + options.completing, options.completing_reads
    job.base, job.reason, job.end_time = base, reason, now
    job.exit_code, job.exit_signal = exit_code, sent
    if base in TERMINAL:
        world.history.append(past(job, base))


def past(job: FakeJob, base: str) -> FakePast:
    """This start as accounting will remember it."""
    return FakePast(
        job_id=job.job_id,
        raw_id=job.raw_id,
        user=job.user,
        name=job.name,
        base=base,
        nodes=list(job.nodes),
        submit_time=job.submit_time,
        start_time=job.start_time,
        end_time=job.end_time,
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
    )


def kill_and_requeue(
    world: World, job: FakeJob, now: float, options: FakeOptions, *, hold: bool, why: str = "REQUEUED"
) -> None:
    """`why`: the state of the ended start in accounting. A start that had ended already has its record."""
    if job.base not in TERMINAL:
        world.history.append(past(job, why))
        world.history[-1].end_time = now
    end(world, job, "PENDING", now, options)
    job.restarts += 1
    job.killed_at = now
    if not job.completing:
        _completed(job, now, options)
    if hold:
        job.held = REQUEUE_HELD


def take_down(world: World, node: FakeNode, now: float, options: FakeOptions) -> None:
    """DOWN kills all that runs there: what may be requeued is, the rest ends NODE_FAIL, whoever's it is."""
    node.down = True
    hit = [job for job in world.jobs.values() if node.name in job.nodes and job.base == "RUNNING"]
    whole = {job.het_job_id for job in hit if job.het_job_id is not None}
    for job in [*hit, *(other for other in world.jobs.values() if other.het_job_id in whole and other not in hit)]:
        if job.requeue and job.batch:
            kill_and_requeue(world, job, now, options, hold=False, why="NODE_FAIL")
        else:
            end(world, job, "NODE_FAIL", now, options)
