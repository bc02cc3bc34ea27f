"""FakeSlurm: the port without a Slurm, for scenario tests and for the kill walk.

It obeys the recipes that were tried on real clusters (`fake_rules`), lives by an injected clock, can be made to fail
on purpose, and counts every write that took effect. The same contract test runs against it and against a real Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm import checked, fake_rules, versions
from controller.slurm.fake_rules import FakeOptions, refusal
from controller.slurm.fake_views import job_view, moment, node_view
from controller.slurm.fake_world import Effect, FakeJob, FakeNode, Fault, Late, Store, World
from controller.slurm.versions import Version
from controller.slurm.views import ClusterView, JobView, NodeView

_VERSION = "22.05.8"


class FakeSlurm:
    """SlurmPort in memory, or in `path` where several processes must see one Slurm.

    `user` is who we are to Slurm; with `admin` False node updates and other people's jobs are refused.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        path: Path | None = None,
        options: FakeOptions | None = None,
        user: str = "slurm",
        admin: bool = True,
    ) -> None:
        self._clock = clock
        self._store = Store(path)
        self._options = options or FakeOptions()
        self._user = user
        self._admin = admin

    def seen_by(self, user: str, *, admin: bool = False) -> FakeSlurm:
        """The same Slurm through the eyes of another user."""
        other = FakeSlurm(self._clock, options=self._options, user=user, admin=admin)
        other._store = self._store
        return other

    # reading

    def read_cluster(self) -> ClusterView:
        with self._call("read_cluster") as (world, now):
            at = self._clock()
            return ClusterView(
                cluster=world.cluster,
                version=versions.parse(_VERSION),
                nodes={name: node_view(world, node, now, self._options) for name, node in world.nodes.items()},
                jobs={job_id: self._seen(job) for job_id, job in world.jobs.items()},
                nodes_at=at,
                jobs_at=at,
                next_job_id=world.next_job_id,
                controller_boot_time=moment(world.boot_time),
            )

    def read_job(self, job_id: str) -> JobView | None:
        with self._call("read_job") as (world, _):
            job = fake_rules.look_up(world, checked.job(job_id))
            return self._seen(job) if job else None

    def read_array(self, job_id: str) -> list[JobView]:
        with self._call("read_array") as (world, _):
            wanted = checked.job(job_id)
            return [
                self._seen(job)
                for job in world.jobs.values()
                if wanted in (job.job_id, str(job.raw_id), str(job.array_job_id))
            ]

    def read_node(self, name: str) -> NodeView | None:
        with self._call("read_node") as (world, now):
            node = world.nodes.get(checked.node(name))
            return node_view(world, node, now, self._options) if node else None

    def ping(self) -> bool:
        with self._store.change() as world:
            return not world.away

    def version(self) -> Version:
        with self._call("version"):
            return versions.parse(_VERSION)

    # writing

    def drain_node(self, name: str, reason: str) -> None:
        self._write("drain_node", [checked.node(name), checked.line(reason)])

    def down_node(self, name: str, reason: str) -> None:
        self._write("down_node", [checked.node(name), checked.line(reason)])

    def resume_node(self, name: str) -> None:
        self._write("resume_node", [checked.node(name)])

    def hold_job(self, job_id: str) -> None:
        self._write("hold_job", [checked.job(job_id)])

    def release_job(self, job_id: str) -> None:
        self._write("release_job", [checked.job(job_id)])

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        self._write("requeue_job", [checked.job(job_id), hold])

    def exclude_nodes(self, job_id: str, names: Sequence[str], *, start_time: Literal["now"] | None = None) -> None:
        checked.node_list(names)
        self._write("exclude_nodes", [checked.job(job_id), list(names), start_time == "now"])

    def set_start_now(self, job_id: str) -> None:
        self._write("set_start_now", [checked.job(job_id)])

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        self._write("cancel_job", [checked.job(job_id), checked.signal_name(signal) if signal else ""])

    def update_comment(self, job_id: str, comment: str) -> None:
        self._write("update_comment", [checked.job(job_id), checked.line(comment)])

    # what tests may do besides: the cluster, the other people, the failures

    def add_nodes(self, *names: str, **attributes: Any) -> None:
        with self._store.change() as world:
            for name in names:
                world.nodes[name] = FakeNode(name=name, boot_time=self._now(), **attributes)

    def submit(self, **attributes: Any) -> str:
        """A job by FakeJob's attributes; returns its id. `held="JobHeldUser"` submits it held by its owner."""
        with self._store.change() as world:
            number = world.next_job_id
            world.next_job_id += 1
            return self._add_job(world, FakeJob(raw_id=number, **attributes)).job_id

    def submit_array(self, tasks: Sequence[int], **attributes: Any) -> list[str]:
        """Ids "N_task"; each task also has a number of its own, and the last one has the array's, as in Slurm."""
        with self._store.change() as world:
            array = world.next_job_id
            world.next_job_id += len(tasks)
            numbers = [*range(array + 1, array + len(tasks)), array]
            made = [
                FakeJob(raw_id=number, array_job_id=array, array_task_id=task, **attributes)
                for task, number in zip(tasks, numbers, strict=True)
            ]
            return [self._add_job(world, job).job_id for job in made]

    def tick(self) -> None:
        """Let the time since the last call take effect, and the scheduler run."""
        with self._store.change() as world:
            self._advance(world, schedule=True)

    def end_job(self, job_id: str, base: str = "COMPLETED", *, exit_code: int = 0, reason: str = "") -> None:
        with self.world() as world:
            job = fake_rules.find_job(world, job_id)
            fake_rules.end(job, base, self._now(), self._options, reason=reason, exit_code=exit_code)

    def kill_host(self, name: str) -> None:
        """Its slurmd falls silent; Slurm notices in its own time."""
        with self.world() as world:
            world.nodes[name].slurmd_dead_since = self._now()

    def restore_host(self, name: str) -> None:
        with self.world() as world:
            world.nodes[name].slurmd_dead_since = None

    def stop_answering(self, away: bool = True) -> None:
        with self._store.change() as world:
            world.away = away

    def fail_next(
        self,
        kind: Literal["timeout", "unavailable", "refused", "unreadable"],
        *,
        times: int = 1,
        call: str = "",
        refusal_kind: RefusalKind = RefusalKind.OTHER,
        effect: Literal["never", "now", "later"] = "never",
        delay: float = 0.0,
    ) -> None:
        """The next `times` calls (of `call`, or any) fail. `effect` and `delay` (s): what a timed-out write does."""
        with self._store.change() as world:
            fault = {"kind": kind, "call": call, "refusal": refusal_kind.value, "effect": effect, "delay": delay}
            world.faults += [Fault(**fault) for _ in range(times)]  # type: ignore[arg-type]

    def effects(self, kind: str | None = None, target: str | None = None) -> list[Effect]:
        """Every write that took effect, in order."""
        with self._store.change() as world:
            self._advance(world, schedule=False)
            return [
                effect
                for effect in world.log
                if (kind is None or effect.kind == kind) and (target is None or effect.target == target)
            ]

    @contextmanager
    def world(self) -> Iterator[World]:
        """The state itself, brought up to now: for what the methods above do not offer."""
        with self._store.change() as world:
            self._advance(world, schedule=False)
            yield world

    # how

    def _now(self) -> float:
        return self._clock().timestamp()

    @contextmanager
    def _call(self, name: str) -> Iterator[tuple[World, float]]:
        with self._store.change() as world:
            self._meet_fault(world, name, [], write=False)
            self._advance(world, schedule=self._options.auto_tick)
            yield world, self._now()

    def _write(self, name: str, args: list[Any]) -> None:
        with self._store.change() as world:
            self._advance(world, schedule=self._options.auto_tick)
            self._meet_fault(world, name, args, write=True)
            self._carry_out(world, name, args)

    def _meet_fault(self, world: World, name: str, args: list[Any], *, write: bool) -> None:
        fault = next((fault for fault in world.faults if fault.call in ("", name)), None)
        if fault is None:
            if world.away:
                raise SlurmUnavailable(f"{name}: Unable to contact slurm controller", outcome_unknown=False)
            return
        world.faults.remove(fault)
        if fault.kind == "refused":
            raise refusal(RefusalKind(fault.refusal), name)
        if fault.kind == "unreadable":
            raise SlurmUnreadable(f"{name}: made unreadable")
        if write and fault.effect == "now":
            self._carry_out(world, name, args)
        elif write and fault.effect == "later":
            world.late.append(Late(due=self._now() + fault.delay, call=name, args=args))
        if fault.kind == "timeout":
            raise SlurmTimeout(f"{name}: no answer", outcome_unknown=write)
        raise SlurmUnavailable(f"{name}: connection lost", outcome_unknown=write and fault.effect != "never")

    def _advance(self, world: World, *, schedule: bool) -> None:
        now = self._now()
        for late in [late for late in world.late if late.due <= now]:
            world.late.remove(late)
            try:
                self._carry_out(world, late.call, late.args)
            except SlurmRefused as refused:  # nobody waits for this answer any more
                fake_rules.record(world, "late-refused", str(late.args[0]), now, str(refused))
        fake_rules.advance(world, now, self._options)
        if schedule and not world.away:
            fake_rules.schedule(world, now, self._options)

    def _carry_out(self, world: World, name: str, args: list[Any]) -> None:
        target, *rest = args
        if name.endswith("_node"):
            self._change_node(world, name, target, rest)
        else:
            self._change_job(world, name, target, rest)

    def _change_node(self, world: World, name: str, target: str, rest: list[Any]) -> None:
        if not self._admin:
            raise refusal(RefusalKind.NOT_PERMITTED, target)
        node, now = fake_rules.find_node(world, target), self._now()
        if name == "drain_node":
            fake_rules.drain(world, node, rest[0], self._user, now)
        elif name == "down_node":
            fake_rules.down(world, node, rest[0], self._user, now, self._options)
        else:
            fake_rules.resume(world, node, now)

    def _change_job(self, world: World, name: str, target: str, rest: list[Any]) -> None:
        job, now = fake_rules.find_job(world, target), self._now()
        if not self._admin and job.user != self._user:
            raise refusal(RefusalKind.NOT_PERMITTED, target)
        rules: dict[str, Callable[[], None]] = {
            "hold_job": lambda: fake_rules.hold(world, job, "JobHeldAdmin" if self._admin else "JobHeldUser", now),
            "release_job": lambda: fake_rules.release(world, job, now),
            "requeue_job": lambda: fake_rules.requeue(world, job, rest[0], now, self._options),
            "exclude_nodes": lambda: fake_rules.exclude(world, job, rest[0], rest[1], now),
            "set_start_now": lambda: fake_rules.start_now(world, job, now),
            "cancel_job": lambda: fake_rules.cancel(world, job, rest[0], now, self._options),
            "update_comment": lambda: fake_rules.comment(world, job, rest[0], now),
        }
        rules[name]()

    def _add_job(self, world: World, job: FakeJob) -> FakeJob:
        job.submit_time = job.begin_time = self._now()
        world.jobs[job.job_id] = job
        return job

    def _seen(self, job: FakeJob) -> JobView:
        view = job_view(job)
        job.completing_reads = max(0, job.completing_reads - 1)
        return view
