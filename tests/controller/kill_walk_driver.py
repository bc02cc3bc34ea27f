"""Runs the controller in child processes that are really killed (SIGKILL), at a chosen moment of an incident, and then
once more from what the file database and the file Slurm still hold. Called by test_kill_walk.py.

A moment is the time right after a committed write of the database, or right after a write to Slurm, counted from the
insertion of the incident. Nothing of this is known to the code under test: the driver wraps connection and port.

`python -m tests.controller.kill_walk_driver FOLDER VARIANT COUNT|N,N,...`: prints one JSON line for each moment.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, connections  # noqa: E402

from controller.models import Action, AgentReport, Attempt, Incident, NodeHold  # noqa: E402
from controller.slurm.fake import FakeSlurm  # noqa: E402
from tests.scenarios.world import World  # noqa: E402

WRITES = (
    *("drain_node", "down_node", "hold_job", "release_job", "requeue_job", "exclude_nodes", "set_start_now"),
    *("reserve_nodes", "set_reservation", "delete_reservation"),
)
MAX_TICKS = 80
NEVER = 1 << 30


class Moments:
    """Counts; at the chosen one the process kills itself, as hard as a machine that loses power."""

    def __init__(self, chosen: int) -> None:
        self.chosen, self.count, self.begun = chosen, 0, False
        self.names: list[str] = []

    def passed(self, name: str) -> None:
        if not self.begun:
            return
        self.count += 1
        self.names.append(name)
        if self.count == self.chosen:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledAfterWrite:
    """The port, with a moment after every write."""

    def __init__(self, port: FakeSlurm, moments: Moments) -> None:
        self._port, self._moments = port, moments

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in WRITES:
            return found

        def write(*args: Any, **options: Any) -> None:
            found(*args, **options)
            self._moments.passed(f"slurm {name}")

        return write


def watched(moments: Moments) -> AbstractContextManager[None]:
    """A moment after every commit: of a transaction, and of each write outside one."""
    commit = connection.commit

    def committed() -> None:
        commit()
        moments.passed("commit")

    connection.commit = committed  # type: ignore[method-assign]

    def statement(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith('INSERT INTO "controller_incident"'):
            moments.begun = True
        result = execute(sql, params, many, context)
        if not connection.in_atomic_block and sql.startswith(("INSERT", "UPDATE", "DELETE")):
            moments.passed(sql.split('"')[1])
        return result

    return connection.execute_wrapper(statement)


class FileWorld(World):
    """The scenario's world with Slurm and clock in files, so that a successor finds both."""

    folder: Path
    living_again = False

    def attach(self, folder: Path, variant: str) -> None:
        self.folder = folder
        self.living_again = variant == "living"
        options = self.slurm._options
        self.slurm = FakeSlurm(self._time, path=folder / "slurm.json", options=options)
        self.port = self.slurm

    def _time(self) -> Any:
        from controller.clock import aware

        return aware(self.now)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._keep()

    def tick(self, *, actions: bool = True) -> None:
        super().tick(actions=actions)
        self._keep()

    def _keep(self) -> None:
        (self.folder / "now").write_text(repr(self.now))

    def _seen(self, name: str, *, controller: bool = False) -> Any:
        if self.living_again and Incident.objects.exists():
            return "open"
        return super()._seen(name, controller=controller)


def use_database(folder: Path) -> None:
    connections.close_all()
    connections.databases["default"]["NAME"] = str(folder / "db.sqlite3")
    connection.settings_dict["NAME"] = str(folder / "db.sqlite3")


def prepare(folder: Path, variant: str) -> None:
    """A watched training job, on disk."""
    folder.mkdir(parents=True)
    use_database(folder)
    call_command("migrate", verbosity=0)
    world = FileWorld()
    with world.slurm.world() as slurm:
        nodes = {name: {"address": node.address, "port": node.port} for name, node in slurm.nodes.items()}
    world.attach(folder, variant)
    for name, attributes in nodes.items():
        world.slurm.add_nodes(name, **attributes)
    world.start()
    if variant == "rival":
        world.slurm.submit(num_nodes=3, user="eve")
    if variant != "living":
        world.slurm.kill_host("gpu2")
    world._keep()
    connections.close_all()


def reopened(folder: Path, variant: str) -> FileWorld:
    use_database(folder)
    world = FileWorld()
    world.attach(folder, variant)
    world.now = float((folder / "now").read_text())
    world.job_id = "1"
    world.silent_agents, world.dark = {"gpu2"}, {"gpu2"}
    return world


def run_until_quiet(world: FileWorld) -> None:
    for _ in range(MAX_TICKS):
        world.tick()
        over = Incident.objects.filter(state__in=("recovering", "verifying", "awaiting_operator")).exists()
        if over and not Action.objects.filter(state__in=("ready", "claimed")).exists():
            return


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a process of its own; returns its exit status as `os.waitpid` gives it."""
    connections.close_all()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            connections.close_all()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def walk(template: Path, folder: Path, variant: str, chosen: int) -> dict[str, Any]:
    shutil.copytree(template, folder)
    moments = Moments(chosen)

    def first() -> None:
        world = reopened(folder, variant)
        world.port = KilledAfterWrite(world.slurm, moments)  # type: ignore[assignment]
        with watched(moments):
            run_until_quiet(world)
        (folder / "moments.json").write_text(json.dumps(moments.names))

    status = in_child(first)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    second = in_child(lambda: run_until_quiet(reopened(folder, variant)))
    report = {"moment": chosen, "killed": killed, "second": second, **look(folder, variant)}
    if (folder / "moments.json").exists():
        report["moments"] = json.loads((folder / "moments.json").read_text())
    shutil.rmtree(folder)
    return report


def look(folder: Path, variant: str) -> dict[str, Any]:
    world = reopened(folder, variant)
    job = world.slurm_job()
    effects = [f"{effect.kind} {effect.target}" for effect in world.slurm.effects()]
    holds = list(NodeHold.objects.values_list("state", flat=True))
    actions = sorted(Action.objects.values_list("kind", "state"))
    found = {
        "incidents": list(Incident.objects.values_list("state", flat=True)),
        "holds": holds,
        "actions": [list(action) for action in actions],
        "effects": effects,
        "job": [job.base, job.restarts, job.held, job.excluded, job.nodes],
        "reservations": sorted(world.slurm.read_cluster().reservations),
        "attempts": Attempt.objects.count(),
        "agents": AgentReport.objects.count(),
    }
    connections.close_all()
    return found


def main(folder: Path, variant: str, wanted: str) -> None:
    template = folder / "template"
    prepare(template, variant)
    moments = [NEVER] if wanted == "COUNT" else [int(text) for text in wanted.split(",")]
    for moment in moments:
        print(json.dumps(walk(template, folder / "walk", variant, moment)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
