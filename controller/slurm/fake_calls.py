"""How a call to the in-memory Slurm goes: time passes first, then it may fail on purpose, then the rules decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm import fake_launch, fake_rules, fake_writes
from controller.slurm.fake_rules import FakeOptions, refusal
from controller.slurm.fake_world import FakeJob, Late, Store, World


class FakeCalls:
    """`user` is who calls; with `admin` False node updates, reservations and other people's jobs are refused."""

    def __init__(
        self, clock: Callable[[], datetime], *, store: Store, options: FakeOptions, user: str, admin: bool
    ) -> None:
        self._clock = clock
        self._store = store
        self._options = options
        self._user = user
        self._admin = admin

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
        fake_launch.fail_starts(world, now, self._options)

    def _carry_out(self, world: World, name: str, args: list[Any]) -> None:
        target, *rest = args
        if name.endswith("_node"):
            self._change_node(world, name, target, rest)
        elif name in ("reserve_nodes", "delete_reservation"):
            self._change_reservation(world, name, target, rest)
        else:
            self._change_job(world, name, target, rest)

    def _change_node(self, world: World, name: str, target: str, rest: list[Any]) -> None:
        if not self._admin:
            raise refusal(RefusalKind.NOT_PERMITTED, target)
        node, now = fake_rules.find_node(world, target), self._now()
        if name == "drain_node":
            fake_writes.drain(world, node, rest[0], self._user, now)
        elif name == "down_node":
            fake_writes.down(world, node, rest[0], self._user, now, self._options)
        else:
            fake_writes.resume(world, node, now)

    def _change_reservation(self, world: World, name: str, target: str, rest: list[Any]) -> None:
        if not self._admin:
            raise refusal(RefusalKind.NOT_PERMITTED, target)
        if name == "reserve_nodes":
            fake_writes.reserve(world, target, rest[0], rest[1], rest[2], self._now())
        else:
            fake_writes.delete_reservation(world, target, self._now())

    def _change_job(self, world: World, name: str, target: str, rest: list[Any]) -> None:
        """A refusal for one component of a het job refuses the whole, and is known before anything is changed."""
        for job in fake_rules.all_of(world, target):
            if not self._admin and job.user != self._user:
                raise refusal(RefusalKind.NOT_PERMITTED, target)
        for job in fake_rules.all_of(world, target):
            self._change_one(world, name, job, rest)

    def _change_one(self, world: World, name: str, job: FakeJob, rest: list[Any]) -> None:
        now = self._now()
        rules: dict[str, Callable[[], None]] = {
            "hold_job": lambda: fake_writes.hold(world, job, "JobHeldAdmin" if self._admin else "JobHeldUser", now),
            "release_job": lambda: fake_writes.release(world, job, now),
            "requeue_job": lambda: fake_writes.requeue(world, job, rest[0], now, self._options),
            "exclude_nodes": lambda: fake_writes.exclude(world, job, rest[0], rest[1], now),
            "set_reservation": lambda: fake_writes.set_reservation(world, job, rest[0], now),
            "set_start_now": lambda: fake_writes.start_now(world, job, now),
            "cancel_job": lambda: fake_writes.cancel(world, job, rest[0], now, self._options),
            "update_comment": lambda: fake_writes.comment(world, job, rest[0], now),
        }
        rules[name]()
