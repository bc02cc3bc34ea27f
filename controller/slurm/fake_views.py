"""The in-memory Slurm's state as the port's value types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from controller.slurm import reasons
from controller.slurm.durations import UNLIMITED
from controller.slurm.fake_rules import FakeOptions, active_reservations, occupies
from controller.slurm.fake_world import FakeJob, FakeNode, FakePartition, FakePast, FakeReservation, World
from controller.slurm.states import JobState, NodeState, parse_job, parse_node
from controller.slurm.views import JobView, NodeView, PartitionView, PastJob, ReservationView


def moment(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def node_view(world: World, node: FakeNode, now: float, options: FakeOptions) -> NodeView:
    there = [job for job in world.jobs.values() if node.name in job.nodes and occupies(job)]
    used = sum(job.cpus_per_node for job in there)
    return NodeView(
        name=node.name,
        state=_node_state(world, node, there, now, options),
        reason=node.reason,
        reason_user=node.reason_user,
        reason_at=moment(node.reason_at),
        address=node.address,
        hostname=node.name,
        port=node.port,
        boot_time=moment(node.boot_time),
        slurmd_start_time=moment(node.boot_time),
        partitions=tuple(node.partitions),
        features=tuple(node.features),
        active_features=tuple(node.features),
        gres=node.gres,
        cpus=node.cpus,
        cpus_alloc=used,
    )


def job_view(job: FakeJob) -> JobView:
    reason = job.held or job.reason
    return JobView(
        job_id=job.job_id,
        raw_id=job.raw_id,
        state=_job_state(job),
        name=job.name,
        user=job.user,
        uid=job.uid,
        array_job_id=job.array_job_id,
        array_task_id=job.array_task_id,
        het_job_id=job.het_job_id,
        het_job_offset=job.het_offset,
        features=job.features,
        partition=tuple(job.partition),
        reason=reason,
        nodes=tuple(job.nodes),
        batch_host=job.nodes[0] if job.nodes else "",
        excluded_nodes=tuple(job.excluded),
        required_nodes=tuple(job.required),
        reservation=job.reservation,
        batch=job.batch,
        requeue=job.requeue,
        restarts=job.restarts,
        priority=0 if job.held or job.bad_constraints else 1000,
        hold_kind=reasons.hold_kind(reason),
        submit_time=moment(job.submit_time),
        eligible_time=moment(job.begin_time),
        start_time=moment(job.start_time if job.start_time else job.begin_time),
        end_time=moment(job.end_time),
        time_limit=UNLIMITED if job.time_limit_s is None else timedelta(seconds=job.time_limit_s),
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
        comment=job.comment,
        command=job.command,
        workdir=job.workdir,
        stdout=job.stdout,
        num_nodes=job.num_nodes,
        tres_per_node="gres/gpu:8",
    )


def partition_views(world: World) -> dict[str, PartitionView]:
    """Those that a test described, and those that a node names."""
    named = dict.fromkeys([*world.partitions, *(name for node in world.nodes.values() for name in node.partitions)])
    return {name: _partition_view(world, world.partitions.get(name) or FakePartition(name)) for name in named}


def _partition_view(world: World, partition: FakePartition) -> PartitionView:
    return PartitionView(
        name=partition.name,
        state=partition.state,
        nodes=tuple(node.name for node in world.nodes.values() if partition.name in node.partitions),
        hidden=partition.hidden,
        max_nodes=partition.max_nodes,
        max_time=UNLIMITED,
    )


def reservation_view(reservation: FakeReservation, now: float) -> ReservationView:
    return ReservationView(
        name=reservation.name,
        nodes=tuple(reservation.nodes),
        users=tuple(reservation.users),
        flags=frozenset(reservation.flags),
        active=reservation.start <= now < reservation.end,
        start_time=moment(reservation.start),
        end_time=moment(reservation.end),
    )


def past_view(world: World, past: FakePast) -> PastJob:
    return PastJob(
        job_id=past.job_id,
        raw_id=past.raw_id,
        state=parse_job(past.base),
        user=past.user,
        cluster=world.cluster,
        name=past.name,
        nodes=tuple(past.nodes),
        submit_time=moment(past.submit_time),
        start_time=moment(past.start_time),
        end_time=moment(past.end_time),
        exit_code=past.exit_code,
        exit_signal=past.exit_signal,
    )


def _job_state(job: FakeJob) -> JobState:
    return parse_job("COMPLETING" if job.completing else job.base)  # the flag hides the base, as in Slurm's text


def _node_state(world: World, node: FakeNode, there: list[FakeJob], now: float, options: FakeOptions) -> NodeState:
    used = sum(job.cpus_per_node for job in there if job.base == "RUNNING")
    base = "DOWN" if node.down else "IDLE" if not used else "ALLOCATED" if used >= node.cpus else "MIXED"
    flags = list(node.flags)
    if node.drain:
        flags.append("DRAIN")
    if active_reservations(world, node.name, now):
        flags.append("RESERVED")
    if any(job.completing for job in there) and not node.down:
        flags.append("COMPLETING")
    dead = node.slurmd_dead_since
    if dead is not None and now - dead >= options.not_responding_after:
        flags.append("NOT_RESPONDING")
    return parse_node("+".join([base, *flags]))
