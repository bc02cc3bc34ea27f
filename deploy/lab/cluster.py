"""A running lab, and the faults one can make in it. Import this; `lab.py` is the same from a shell."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.lab import (
    accounting,
    daemons,
    filler,
    full_files,
    kernel_log,
    live,
    making,
    network,
    processes,
    sensors,
    slurm,
    switches,
)
from deploy.lab.errors import LabError
from deploy.lab.running import wait_for
from deploy.lab.state import Node, State, load, locked, read

LOOPBACK_IS_REACHABLE = "on loopback its address stays up and answers with refusals: a dead daemon, not a silent host"


class Lab:
    """The lab in `directory`. Nodes are named `gpu2` or numbered `2`; every method re-reads the state file."""

    def __init__(self, directory: Path | str) -> None:
        self.dir = Path(directory).resolve()
        self.state = read(self.dir)

    @classmethod
    def up(
        cls,
        directory: Path | None = None,
        *,
        nodes: int = 4,
        loopback: bool = False,
        full: bool = False,
        kill_wait: int | None = None,
        keep: bool = False,
    ) -> Lab:
        """`full`: with accounting, the users of every rank, and the partitions that preempt and hide."""
        wish = making.Wish(nodes=nodes, loopback=loopback, full=full, kill_wait=kill_wait)
        state = making.up(directory, wish, keep=keep)
        return cls(state.path)

    def down(self) -> None:
        making.down(self.dir)

    @property
    def conf(self) -> str:
        return self.state.slurm_conf

    @property
    def users(self) -> dict[str, str]:
        return self.state.users

    @property
    def nodes(self) -> list[Node]:
        return self.state.nodes

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]

    @property
    def management_host(self) -> str:
        return self.state.management_host

    @property
    def env(self) -> dict[str, str]:
        return self.state.env

    def run(
        self,
        *argv: str,
        user: str = "owner",
        timeout: float = 30,
        check: bool = True,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        on: str | int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a lab user (`owner`, `controller`, ..., `root`), on the controller's host or a node."""
        self.state = read(self.dir)
        node = None if on is None else self.state.node(on)
        return slurm.run_as(
            self.state, argv, user=user, timeout=timeout, check=check, stdin=stdin, env=env, cwd=cwd, node=node
        )

    def pids(self, which: str | int) -> list[int]:
        """Every process of a node."""
        return processes.on_node(self.state, self.state.node(which))

    def node_states(self) -> dict[str, str]:
        return slurm.node_states(self.state)

    # Faults.

    def kill_node(self, which: str | int) -> str:
        """A dead host: silent first, so that no farewell leaves it, then every process gone. Says what it did."""
        with self._changing() as state:
            node = state.node(which)
            node.host_died = True
            state.save()
            if state.network:
                network.set_node_links(state, node, up=False)
            count = processes.end_all(lambda: processes.on_node(state, node))
            silent = "its addresses are silent" if state.network else LOOPBACK_IS_REACHABLE
            return f"{node.name} is dead: {count} processes killed; {silent}"

    def cut_network(self, which: str | int, link: str = network.BOTH) -> None:
        """Pull the node's cables (management, training or both); its processes live on."""
        with self._changing() as state:
            network.set_node_links(state, state.node(which), up=False, which=link)

    def kill_slurmd(self, which: str | int) -> None:
        """A living host without its slurmd: the port refuses connections."""
        with self._changing() as state:
            daemons.stop_slurmd(state, state.node(which))

    def restore(self, which: str | int) -> None:
        """Cables in, slurmd started if it is gone. Slurm's own record (drained, down) is left to its administrator."""
        with self._changing() as state:
            node = state.node(which)
            if state.network:
                network.set_node_links(state, node, up=True)
            if node.host_died:
                kernel_log.clear(node)
            if not processes.is_alive(node.slurmd):
                daemons.start_slurmd(state, node)

    def cut_controller(self) -> None:
        """No node can reach the controller's host, nor it them; nodes still reach each other."""
        with self._changing() as state:
            network.set_host_link(state, up=False)

    def restore_controller(self) -> None:
        with self._changing() as state:
            network.set_host_link(state, up=True)

    def stop_slurmctld(self) -> None:
        """SIGKILL: Slurm refuses every question until `start_slurmctld`."""
        with self._changing() as state:
            daemons.stop(state, "slurmctld")

    def start_slurmctld(self) -> None:
        with self._changing() as state:
            if not processes.is_alive(state.daemons["slurmctld"]):
                daemons.start_slurmctld(state)

    def freeze_slurmctld(self, frozen: bool = True) -> None:
        """SIGSTOP (or SIGCONT): connections are accepted and never answered."""
        with self._changing() as state:
            daemons.freeze(state, "slurmctld", frozen=frozen)

    def stop_slurmdbd(self) -> None:
        """SIGKILL: accounting is away; slurmctld goes on with what it knows."""
        with self._changing() as state:
            daemons.stop(state, "slurmdbd")

    def start_slurmdbd(self) -> None:
        with self._changing() as state:
            if not processes.is_alive(state.daemons["slurmdbd"]):
                accounting.start_slurmdbd(state)

    def freeze_slurmdbd(self, frozen: bool = True) -> None:
        with self._changing() as state:
            daemons.freeze(state, "slurmdbd", frozen=frozen)

    # Signs and circumstances.

    def xid(
        self, which: str | int, code: str | int, *, gpu: int = 0, pid: int | None = None, name: str = "python3"
    ) -> str:
        """The NVIDIA driver's line in the node's kernel log (`node.kernel_log`); its text is returned."""
        with self._changing() as state:
            return kernel_log.xid(state.node(which), code, gpu=gpu, pid=pid, name=name)

    def start_sensor(self, which: str | int, url: str, token: str) -> None:
        """The real node sensor of that node, reading `node.kernel_log` alone; it ends with the node."""
        with self._changing() as state:
            sensors.start(state, state.node(which), url, token)

    def stop_sensor(self, which: str | int) -> None:
        with self._changing() as state:
            sensors.stop(state, state.node(which))

    def fill(self, jobs: int = 4, *, seconds: int = 20) -> None:
        """From now on the other user has `jobs` jobs waiting, each for a whole node and `seconds` long."""
        with self._changing() as state:
            filler.start(state, jobs=jobs, seconds=seconds)

    def stop_filling(self) -> None:
        with self._changing() as state:
            filler.stop(state)

    def configure(self, **settings: str | None) -> None:
        """Replace lines of slurm.conf and reconfigure; None gives a line back its value at `up`."""
        with self._changing() as state:
            changed = {**state.settings, **settings}
            switches.configure(state, {name: value for name, value in changed.items() if value is not None})

    def set_kill_wait(self, seconds: int | None) -> None:
        """Seconds between SIGTERM and SIGKILL (slurmd waits at least 5); None: Slurm's own, 30."""
        self.configure(KillWait=str(making.SLURMS_KILL_WAIT if seconds is None else seconds))

    def private_data(self, *words: str) -> None:
        """Slurm's PrivateData, for example ("jobs", "nodes"); without a word everybody sees everything."""
        self.configure(PrivateData=",".join(words) or None)

    def job_requeue(self, default: bool | int) -> None:
        """Slurm's JobRequeue: whether jobs that do not say so may be requeued."""
        self.configure(JobRequeue=str(int(default)))

    def max_batch_requeue(self, count: int | None) -> None:
        """Requeues by Slurm until it holds a job; refused where this Slurm has no such setting."""
        self.configure(MaxBatchRequeue=None if count is None else str(count))

    # Back to quiet.

    def heal(self, *, seconds: float = 60) -> None:
        """Everything repaired, no job or reservation left, settings and kernel logs as at `up`, every node idle."""
        self._repair()
        wait_for("slurmctld answers", lambda: bool(self.node_states()), seconds=30)
        if self.state.settings:
            self.configure(**dict.fromkeys(self.state.settings))
        self._end_jobs()
        wait_for("no job is left and every node is idle", self._is_quiet, seconds=seconds, every=0.3)

    def status(self) -> dict[str, Any]:
        """The state file's content and, under `live`, what is true at this moment."""
        self.state = state = read(self.dir)
        return {**state.as_json(), "live": live.seen(state)}

    def _repair(self) -> None:
        for name in self.state.daemons:
            if processes.is_alive(self.state.daemons[name]):
                self._thaw(name)
        self.stop_filling()
        if self.state.full:
            self.start_slurmdbd()
        self.start_slurmctld()
        if self.state.network:
            self.restore_controller()
        for node in self.nodes:
            self.restore(node.name)
            kernel_log.clear(node)
            with self._changing() as state:
                sensors.forget(state, state.node(node.name))

    def _thaw(self, name: str) -> None:
        with self._changing() as state:
            daemons.freeze(state, name, frozen=False)

    def _end_jobs(self) -> None:
        if found := slurm.jobs(self.state):
            self.run("scancel", *found, user="controller", check=False)
        self._hurry()

    def _hurry(self) -> None:
        """End what jobs and epilogs run: a task that ignores SIGTERM would hold its node for all of KillWait."""
        for pid in processes.of_jobs(self.state, full_files.EPILOG_MARK):
            processes.kill(pid)

    def _is_quiet(self) -> bool:
        jobs = slurm.jobs(self.state)
        if jobs:
            self._hurry()
        for line in self.run("scontrol", "show", "res", "-o", user="controller", check=False).stdout.splitlines():
            if line.startswith("ReservationName="):
                name = line.split()[0].partition("=")[2]
                self.run("scontrol", "delete", f"ReservationName={name}", user="controller", check=False)
        states = self.node_states()
        for name, word in states.items():
            if "down" in word or "drain" in word or "fail" in word:
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", user="controller", check=False)
        idle = all(states.get(node.name) == "idle" and slurm.registered(self.state, node) for node in self.nodes)
        return idle and not jobs

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        with locked(self.dir / "lab.lock", hand_down=True):
            state = load(self.dir)
            if state is None or state.phase == "stopping":
                raise LabError(f"{self.dir}: the lab is being removed")
            self.state = state
            yield state
