"""The in-memory Slurm's state as the port's value types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from controller.slurm import reasons
from controller.slurm.durations import UNLIMITED
from controller.slurm.fake_rules import FakeOptions, occupies
from controller.slurm.fake_world import FakeJob, FakeNode, World
from controller.slurm.states import JobState, NodeState, parse_job, parse_node
from controller.slurm.views import JobView, NodeView


def moment(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def node_view(world: World, node: FakeNode, now: float, options: FakeOptions) -> NodeView:
    there = [job for job in world.jobs.values() if node.name in job.nodes and occupies(job)]
    used = sum(job.cpus_per_node for job in there)
    return NodeView(
        name=node.name,
        state=_node_state(node, there, now, options),
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


def _job_state(job: FakeJob) -> JobState:
    return parse_job("COMPLETING" if job.completing else job.base)  # the flag hides the base, as in Slurm's text


def _node_state(node: FakeNode, there: list[FakeJob], now: float, options: FakeOptions) -> NodeState:
    used = sum(job.cpus_per_node for job in there if job.base == "RUNNING")
    base = "DOWN" if node.down else "IDLE" if not used else "ALLOCATED" if used >= node.cpus else "MIXED"
    flags = list(node.flags)
    if node.drain:
        flags.append("DRAIN")
    if any(job.completing for job in there) and not node.down:
        flags.append("COMPLETING")
    dead = node.slurmd_dead_since
    if dead is not None and now - dead >= options.not_responding_after:
        flags.append("NOT_RESPONDING")
    return parse_node("+".join([base, *flags]))
