"""The state of the in-memory Slurm: plain values, kept in memory or in one JSON file that several processes share.

With a file, each call takes an exclusive lock, reads, changes, writes a new file, syncs it and renames it into place,
so a process killed at any moment leaves either the old or the new state.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class FakeNode:
    """Times are epoch seconds, as everywhere in this file."""

    name: str
    cpus: int = 8
    gres: str = "gpu:h100:8"
    partitions: list[str] = field(default_factory=lambda: ["train"])
    features: list[str] = field(default_factory=list)
    address: str = "127.0.0.1"
    port: int = 6818
    down: bool = False
    drain: bool = False
    flags: list[str] = field(default_factory=list)  # any further flag: MAINTENANCE, RESERVED, ...
    slurmd_dead_since: float | None = None
    reason: str = ""
    reason_user: str = ""
    reason_at: float = 0.0
    boot_time: float = 0.0
    broken: str = ""  # how starts fail on it: see fake_launch


@dataclass(slots=True)
class FakeJob:
    raw_id: int
    name: str = "job"
    user: str = "ada"
    uid: int = 1000
    num_nodes: int = 1
    cpus_per_node: int = 8  # all of a node: jobs share one only when they say so
    partition: list[str] = field(default_factory=lambda: ["train"])
    batch: bool = True
    requeue: bool = True
    array_job_id: int | None = None
    array_task_id: int | None = None
    base: str = "PENDING"
    nodes: list[str] = field(default_factory=list)
    completing_until: float | None = None
    completing_reads: int = 0
    restarts: int = 0
    held: str = ""  # the reason that stands for the hold
    reason: str = ""
    bad_constraints: bool = False
    excluded: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    reservation: str = ""
    submit_time: float = 0.0
    begin_time: float = 0.0
    start_time: float | None = None
    end_time: float | None = None
    killed_at: float | None = None
    exit_code: int = 0
    exit_signal: int = 0
    comment: str = ""
    command: str = "/home/ada/train.sh"
    workdir: str = "/home/ada"
    stdout: str = ""
    time_limit_s: float | None = None
    features: str = ""
    het_job_id: int | None = None
    het_offset: int | None = None
    refused_launches: int = 0

    @property
    def job_id(self) -> str:
        return str(self.raw_id) if self.array_job_id is None else f"{self.array_job_id}_{self.array_task_id}"

    @property
    def completing(self) -> bool:
        return self.completing_until is not None


@dataclass(slots=True)
class FakePartition:
    name: str
    state: str = "UP"
    hidden: bool = False
    max_nodes: int | None = None


@dataclass(slots=True)
class FakeReservation:
    name: str
    nodes: list[str]
    users: list[str]
    flags: list[str] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0


@dataclass(slots=True)
class FakePast:
    """One start of a job as accounting remembers it."""

    job_id: str
    raw_id: int
    user: str
    name: str
    base: str
    nodes: list[str]
    submit_time: float
    start_time: float | None
    end_time: float | None
    exit_code: int = 0
    exit_signal: int = 0


@dataclass(slots=True)
class Fault:
    """What the next call that matches meets. `effect` is for writes that time out: whether it happens, and when."""

    kind: str  # timeout | unavailable | refused | unreadable
    call: str = ""  # a method's name; "" is any
    refusal: str = "other"
    effect: str = "never"  # never | now | later
    delay: float = 0.0


@dataclass(slots=True)
class Late:
    """A write that was given up on and is still under way."""

    due: float
    call: str
    args: list[Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """One write that took effect: the thing to count where it must have happened exactly once."""

    kind: str
    target: str
    at: float
    detail: str = ""


@dataclass(slots=True)
class World:
    cluster: str = "fake"
    next_job_id: int = 1
    boot_time: float = 0.0
    away: bool = False  # slurmctld does not answer
    config: dict[str, str] = field(default_factory=dict)  # what `scontrol show config` says and a test needs
    nodes: dict[str, FakeNode] = field(default_factory=dict)
    jobs: dict[str, FakeJob] = field(default_factory=dict)  # by job_id
    partitions: dict[str, FakePartition] = field(default_factory=dict)  # those that differ from an open one
    reservations: dict[str, FakeReservation] = field(default_factory=dict)
    history: list[FakePast] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    log: list[Effect] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> World:
        said = json.loads(text)
        return cls(
            **{key: said[key] for key in ("cluster", "next_job_id", "boot_time", "away", "config")},
            nodes={name: FakeNode(**node) for name, node in said["nodes"].items()},
            jobs={job_id: FakeJob(**job) for job_id, job in said["jobs"].items()},
            partitions={name: FakePartition(**each) for name, each in said["partitions"].items()},
            reservations={name: FakeReservation(**each) for name, each in said["reservations"].items()},
            history=[FakePast(**past) for past in said["history"]],
            faults=[Fault(**fault) for fault in said["faults"]],
            late=[Late(**late) for late in said["late"]],
            log=[Effect(**effect) for effect in said["log"]],
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Store:
    """Holds one World, in memory or in `path`."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._world = World()

    @contextmanager
    def change(self) -> Iterator[World]:
        """The world, exclusively; what was changed is kept even when the block raises: refusals change nothing, and
        a time-out may have changed something on purpose."""
        with self._lock:
            if self._path is None:
                yield self._world
                return
            with self._file_lock(self._path):
                world = World.from_json(self._path.read_text()) if self._path.exists() else World()
                try:
                    yield world
                finally:
                    self._write(self._path, world)

    @staticmethod
    @contextmanager
    def _file_lock(path: Path) -> Iterator[None]:
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @staticmethod
    def _write(path: Path, world: World) -> None:
        fresh = path.with_name(path.name + ".new")
        with fresh.open("w") as out:
            out.write(world.to_json())
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
