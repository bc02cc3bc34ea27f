"""A running lab, and the faults one can make in it. Import this; `lab.py` is the same from a shell."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.lab import daemons, making, network, processes, slurm
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
        kill_wait: int = 30,
        keep: bool = False,
    ) -> Lab:
        state = making.up(directory, nodes=nodes, loopback=loopback, kill_wait=kill_wait, keep=keep)
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
        return {"SLURM_CONF": self.conf}

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
        """Run a command as a lab user (`owner`, `controller`, `web`, `root`), on the controller's host or a node."""
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
            daemons.stop_slurmctld(state)

    def start_slurmctld(self) -> None:
        with self._changing() as state:
            if not processes.is_alive(state.daemons["slurmctld"]):
                daemons.start_slurmctld(state)

    def freeze_slurmctld(self, frozen: bool = True) -> None:
        """SIGSTOP (or SIGCONT): connections are accepted and never answered."""
        with self._changing() as state:
            daemons.freeze(state, "slurmctld", frozen=frozen)

    # Back to quiet.

    def heal(self, *, seconds: float = 60) -> None:
        """Everything repaired, no job left, no reservation, every node idle."""
        self._repair()
        wait_for("slurmctld answers", lambda: bool(self.node_states()), seconds=30)
        self._end_jobs()
        wait_for("no job is left and every node is idle", self._is_quiet, seconds=seconds, every=0.3)

    def status(self) -> dict[str, Any]:
        """The state file's content and, under `live`, what is true at this moment."""
        self.state = state = read(self.dir)
        ports = network.links(state) if state.network else {}
        states = self.node_states()
        live_nodes = {
            node.name: {
                "slurm_state": states.get(node.name, "unknown"),
                "slurmd": processes.is_alive(node.slurmd),
                "processes": len(processes.on_node(state, node)),
                "management_up": ports.get(node.port_management, True),
                "training_up": ports.get(node.port_training, True),
            }
            for node in state.nodes
        }
        alive = {name: processes.is_alive(process) for name, process in state.daemons.items()}
        live = {"slurm_answers": bool(states), "controller_up": ports.get("host", True), "daemons": alive}
        return {**state.as_json(), "live": {**live, "nodes": live_nodes}}

    def _repair(self) -> None:
        for name in self.state.daemons:
            if processes.is_alive(self.state.daemons[name]):
                self._thaw(name)
        self.start_slurmctld()
        if self.state.network:
            self.restore_controller()
        for node in self.nodes:
            self.restore(node.name)

    def _thaw(self, name: str) -> None:
        with self._changing() as state:
            daemons.freeze(state, name, frozen=False)

    def _end_jobs(self) -> None:
        if found := slurm.jobs(self.state):
            self.run("scancel", *found, user="controller", check=False)
        uid = processes.lab_uids(self.state)
        # Not after KillWait: a task that ignores SIGTERM would hold its node for half a minute.
        for node in self.nodes:
            for pid in processes.of_users(processes.on_node(self.state, node), uid):
                processes.kill(pid)

    def _is_quiet(self) -> bool:
        for line in self.run("scontrol", "show", "res", "-o", user="controller", check=False).stdout.splitlines():
            if line.startswith("ReservationName="):
                name = line.split()[0].partition("=")[2]
                self.run("scontrol", "delete", f"ReservationName={name}", user="controller", check=False)
        states = self.node_states()
        for name, word in states.items():
            if "down" in word or "drain" in word or "fail" in word:
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", user="controller", check=False)
        idle = all(states.get(node.name) == "idle" and slurm.registered(self.state, node) for node in self.nodes)
        return idle and not slurm.jobs(self.state)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        with locked(self.dir / "lab.lock", hand_down=True):
            state = load(self.dir)
            if state is None or state.phase == "stopping":
                raise LabError(f"{self.dir}: the lab is being removed")
            self.state = state
            yield state
