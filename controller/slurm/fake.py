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

from controller.errors import RefusalKind
from controller.slurm import checked, fake_rules, versions
from controller.slurm.fake_calls import FakeCalls
from controller.slurm.fake_rules import FakeOptions, refusal
from controller.slurm.fake_views import job_view, moment, node_view, partition_views, past_view, reservation_view
from controller.slurm.fake_world import Effect, FakeJob, FakeNode, FakePartition, FakeReservation, Fault, Store, World
from controller.slurm.versions import Version
from controller.slurm.views import ClusterView, JobView, NodeView, PastJob, ReservationView

_VERSION = "22.05.8"


class FakeSlurm(FakeCalls):
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
        super().__init__(clock, store=Store(path), options=options or FakeOptions(), user=user, admin=admin)

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
                config=dict(world.config),
                partitions=partition_views(world),
                reservations={name: reservation_view(each, now) for name, each in world.reservations.items()},
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
                if wanted in (job.job_id, str(job.raw_id), str(job.array_job_id), str(job.het_job_id))
            ]

    def read_node(self, name: str) -> NodeView | None:
        with self._call("read_node") as (world, now):
            node = world.nodes.get(checked.node(name))
            return node_view(world, node, now, self._options) if node else None

    def read_reservation(self, name: str) -> ReservationView | None:
        with self._call("read_reservation") as (world, now):
            found = world.reservations.get(checked.reservation(name))
            return reservation_view(found, now) if found else None

    def read_history(self, job_id: str, *, user: str, since: datetime) -> list[PastJob]:
        with self._call("read_history") as (world, _):
            if not self._options.accounting:
                raise refusal(RefusalKind.DISABLED, job_id)
            wanted = checked.job(job_id)
            live = [job for job in world.jobs.values() if job.base not in fake_rules.TERMINAL]
            starts = [*world.history, *(fake_rules.past(job, job.base) for job in live)]
            ours = (p for p in starts if p.user == user and p.submit_time >= since.timestamp())
            return [past_view(world, p) for p in ours if wanted in (p.job_id, str(p.raw_id))]

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

    def reserve_nodes(self, name: str, nodes: Sequence[str], *, user: str, minutes: int) -> None:
        checked.node_list(nodes)
        self._write("reserve_nodes", [checked.reservation(name), list(nodes), checked.user(user), minutes])

    def delete_reservation(self, name: str) -> None:
        self._write("delete_reservation", [checked.reservation(name)])

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

    def set_reservation(self, job_id: str, name: str) -> None:
        self._write("set_reservation", [checked.job(job_id), checked.reservation(name) if name else ""])

    def cancel_job(self, job_id: str, *, signal: str | None = None) -> None:
        self._write("cancel_job", [checked.job(job_id), checked.signal_name(signal) if signal else ""])

    def update_comment(self, job_id: str, comment: str) -> None:
        self._write("update_comment", [checked.job(job_id), checked.line(comment)])

    # what tests may do besides: the cluster, the other people, the failures

    def add_nodes(self, *names: str, **attributes: Any) -> None:
        with self._store.change() as world:
            for name in names:
                world.nodes[name] = FakeNode(name=name, boot_time=self._now(), **attributes)

    def add_partition(self, name: str, **attributes: Any) -> None:
        """One that differs from an open one; nodes belong to it by their own attribute."""
        with self._store.change() as world:
            world.partitions[name] = FakePartition(name, **attributes)

    def add_reservation(self, name: str, nodes: Sequence[str], users: Sequence[str], **attributes: Any) -> None:
        """Somebody else's, from now on and for a day unless `attributes` say otherwise."""
        with self._store.change() as world:
            times = {"start": self._now(), "end": self._now() + 86400, **attributes}
            world.reservations[name] = FakeReservation(name, list(nodes), list(users), **times)

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

    def submit_het(self, components: Sequence[dict[str, Any]], **attributes: Any) -> list[str]:
        """The ids of its components; the first one's is the whole job's."""
        with self._store.change() as world:
            leader = world.next_job_id
            world.next_job_id += len(components)
            made = [
                FakeJob(raw_id=leader + offset, het_job_id=leader, het_offset=offset, **attributes, **own)
                for offset, own in enumerate(components)
            ]
            return [self._add_job(world, job).job_id for job in made]

    def forget(self, job_id: str) -> None:
        """It leaves slurmctld, as after MinJobAge; accounting keeps it."""
        with self.world() as world:
            del world.jobs[fake_rules.find_job(world, job_id).job_id]

    def tick(self) -> None:
        """Let the time since the last call take effect, and the scheduler run."""
        with self._store.change() as world:
            self._advance(world, schedule=True)

    def end_job(self, job_id: str, base: str = "COMPLETED", *, exit_code: int = 0, reason: str = "") -> None:
        with self.world() as world:
            job = fake_rules.find_job(world, job_id)
            fake_rules.end(world, job, base, self._now(), self._options, reason=reason, exit_code=exit_code)

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

    def _add_job(self, world: World, job: FakeJob) -> FakeJob:
        job.submit_time = job.begin_time = self._now()
        world.jobs[job.job_id] = job
        return job

    def _seen(self, job: FakeJob) -> JobView:
        view = job_view(job)
        job.completing_reads = max(0, job.completing_reads - 1)
        return view
