"""Starts that fail in the in-memory Slurm, as a real one was seen to do it; `FakeNode.broken` says what is wrong.

- `spool`: the batch host cannot set the start up. The job is queued again at once, without COMPLETING, and held;
- `prolog`: the same by any node of the job, and Slurm drains that node;
- `deaf`: the batch host takes no launch. Slurm gives up after a while and queues the job again by itself; at its limit
  it holds it.
"""

from __future__ import annotations

from controller.slurm import fake_rules
from controller.slurm.fake_rules import FakeOptions
from controller.slurm.fake_world import FakeJob, FakeNode, World

HELD = "launch_failed_requeued_held"
HELD_AT_LIMIT = "JobHoldMaxRequeue"
GIVEN_UP_AFTER_S = 2.0
DEFAULT_LIMIT = 5


def fail_starts(world: World, now: float, options: FakeOptions) -> None:
    for node in world.nodes.values():
        if "NOT_RESPONDING" in node.flags and node.broken == "deaf" and not _completing_on(world, node):
            node.flags.remove("NOT_RESPONDING")
    for job in world.jobs.values():
        if job.base == "RUNNING" and not job.completing and job.nodes:
            _fail(world, job, now, options)


def _fail(world: World, job: FakeJob, now: float, options: FakeOptions) -> None:
    host, *others = [world.nodes[name] for name in job.nodes]
    failed = next((node for node in (host, *others) if node.broken == "prolog"), None)
    if failed is not None:
        failed.drain = True
        failed.reason, failed.reason_user, failed.reason_at = "Prolog error", "slurm", now
    if failed is not None or host.broken == "spool":
        _hold(world, job, now, options)
    elif host.broken == "deaf" and job.start_time is not None and now - job.start_time >= GIVEN_UP_AFTER_S:
        _give_up(world, job, host, now, options)


def _hold(world: World, job: FakeJob, now: float, options: FakeOptions) -> None:
    world.history.append(fake_rules.past(job, "REQUEUED"))
    world.history[-1].end_time = now
    job.base, job.reason, job.held = "PENDING", "", HELD
    job.nodes, job.submit_time, job.begin_time = [], now, now + options.requeue_delay
    job.start_time = job.end_time = None
    job.restarts += 1


def _give_up(world: World, job: FakeJob, host: FakeNode, now: float, options: FakeOptions) -> None:
    fake_rules.kill_and_requeue(world, job, now, options, hold=False)
    host.flags.append("NOT_RESPONDING")
    job.refused_launches += 1
    limit = int(world.config.get("MaxBatchRequeue", DEFAULT_LIMIT))
    if job.refused_launches >= limit:
        job.held, job.refused_launches = HELD_AT_LIMIT, 0  # released, it has all of them again


def _completing_on(world: World, node: FakeNode) -> bool:
    return any(job.completing and node.name in job.nodes for job in world.jobs.values())
