"""The writes of the in-memory Slurm: what each call changes, and what it refuses."""

from __future__ import annotations

from controller.errors import RefusalKind
from controller.slurm.fake_rules import (
    TERMINAL,
    FakeOptions,
    end,
    find_node,
    kill_and_requeue,
    record,
    refusal,
    take_down,
)
from controller.slurm.fake_world import FakeJob, FakeNode, FakeReservation, World

# As Slurm prints the flags that the port asks for; SPEC_NODES is its own.
SURVIVOR_FLAGS = ("FLEX", "IGNORE_JOBS", "SPEC_NODES", "NO_HOLD_JOBS_AFTER_END")


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
    kill_and_requeue(world, job, now, options, hold=hold)
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
        end(world, job, "CANCELLED", now, options, sent=15 if was_running else 0)
    record(world, "signal" if sent else "cancel", job.job_id, now, sent)


def comment(world: World, job: FakeJob, text: str, now: float) -> None:
    _unfinished(job)
    job.comment = text
    record(world, "comment", job.job_id, now, text)


def set_reservation(world: World, job: FakeJob, name: str, now: float) -> None:
    _unfinished(job)
    if name and name not in world.reservations:
        raise refusal(RefusalKind.INVALID_RESERVATION, name)
    if name and job.user not in world.reservations[name].users:
        raise refusal(RefusalKind.NOT_PERMITTED, name)
    job.reservation = name
    record(world, "set_reservation" if name else "free", job.job_id, now, name)


def reserve(world: World, name: str, nodes: list[str], user: str, minutes: int, now: float) -> None:
    if name in world.reservations:
        raise refusal(RefusalKind.EXISTS, name)
    for node in nodes:
        find_node(world, node)
    if any(set(nodes) & set(each.nodes) for each in world.reservations.values()):
        raise refusal(RefusalKind.OVERLAPS, name)
    world.reservations[name] = FakeReservation(
        name=name, nodes=list(nodes), users=[user], flags=list(SURVIVOR_FLAGS), start=now, end=now + 60 * minutes
    )
    record(world, "reserve", name, now, ",".join(nodes))


def delete_reservation(world: World, name: str, now: float) -> None:
    if name not in world.reservations:
        raise refusal(RefusalKind.INVALID_RESERVATION, name)
    if any(job.reservation == name and job.base not in TERMINAL for job in world.jobs.values()):
        raise refusal(RefusalKind.IN_USE, name)
    del world.reservations[name]
    record(world, "unreserve", name, now)


def _unfinished(job: FakeJob) -> None:
    if job.base in TERMINAL:
        raise refusal(RefusalKind.JOB_FINISHED, job.job_id)


def _pending(job: FakeJob) -> FakeJob:
    if job.base != "PENDING":
        raise refusal(RefusalKind.NOT_PENDING, job.job_id)
    return job
