"""munged, slurmctld and one slurmd per node: started, written down, waited for. accounting.py has the full lab's."""

from __future__ import annotations

import os
import random
import signal
import socket
import uuid
from pathlib import Path

from deploy.lab import processes
from deploy.lab.running import DAEMON_MARK, spawn, wait_for
from deploy.lab.slurm_files import munge_socket
from deploy.lab.state import Node, Process, State

# Inside its namespaces a node has its own name, name service, boot id and shared memory, as a machine of its own would;
# with the last process of the node all of it is gone.
AS_HOST = (
    'echo "$1" >/proc/sys/kernel/hostname; mount --bind "$2/hosts" /etc/hosts; '
    'mount --bind "$2/boot/$1" /proc/sys/kernel/random/boot_id; '
    'mount -t tmpfs -o mode=1777 tmpfs /dev/shm; shift 2; exec "$@"'
)

# slurmctld (25.11) looks up the name of whoever calls, and the lab's addresses have none: one packet to the
# machine's resolver that gets lost would keep a caller waiting for 5 s.
NO_LONG_LOOKUPS = {"RES_OPTIONS": "timeout:1 attempts:1"}


def start_munged(state: State) -> None:
    d = state.path / "munge"
    argv = [
        "munged", "--foreground", "--num-threads=2", f"--socket={munge_socket(state)}", f"--key-file={d}/key",
        f"--log-file={d}/log", f"--pid-file={d}/pid", f"--seed-file={d}/seed",
    ]  # fmt: skip
    start(state, "munged", argv, user=state.users["munge"])
    wait_for("munged's socket", lambda: answers_unix(munge_socket(state)), seconds=15)


def start_slurmctld(state: State) -> None:
    argv = ["slurmctld", "-D", "-f", state.slurm_conf]
    start(state, "slurmctld", argv, user=state.users["controller"], env=NO_LONG_LOOKUPS)


def stop(state: State, name: str) -> None:
    """SIGKILL: nothing is told, as when its host dies."""
    daemon = state.daemons.get(name)
    processes.end_all(lambda: [daemon.pid] if daemon and processes.is_alive(daemon) else [])


def start_slurmd(state: State, node: Node) -> None:
    argv = ["slurmd", "-D", "-N", node.name, "-f", state.slurm_conf]
    if node.host_died:
        argv.append("-b")  # tells slurmctld that the machine was rebooted
    if node.host_died or not node.boot_id:
        node.boot_id = str(uuid.uuid4())
        (state.path / "boot" / node.name).write_text(f"{node.boot_id}\n")
    if node.netns:
        inside = ["unshare", "--uts", "--mount", "--propagation", "slave", "sh", "-ec", AS_HOST, "sh"]
        argv = ["ip", "netns", "exec", node.netns, *inside, node.name, state.dir, *argv]
    node.slurmd = spawn_marked(state, f"slurmd-{node.name}", argv, env={"RELUME_LAB_NODE": node.name})
    node.host_died = False
    state.save()


def stop_slurmd(state: State, node: Node) -> None:
    """The daemon alone; the machine and its jobs live on, and its address refuses connections."""
    daemon = node.slurmd
    processes.end_all(lambda: [daemon.pid] if daemon and processes.is_alive(daemon) else [])


def free_port(address: str, avoid: set[int]) -> int:
    """A port nobody listens on, below the range that outgoing connections take theirs from."""
    while True:
        port = random.SystemRandom().randrange(15000, 30000)
        with socket.socket() as trial:
            try:
                trial.bind((address, port))
            except OSError:
                continue
        if port not in avoid:
            return port


def log_tail(path: Path, lines: int = 15) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"({error.strerror})"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def freeze(state: State, name: str, *, frozen: bool) -> None:
    """SIGSTOP or SIGCONT one of the daemons: connections are accepted by the kernel and never answered."""
    os.kill(state.daemons[name].pid, signal.SIGSTOP if frozen else signal.SIGCONT)


def start(state: State, name: str, argv: list[str], *, user: str, env: dict[str, str] | None = None) -> None:
    """One of the daemons on the controller's host."""
    state.daemons[name] = spawn_marked(state, name, argv, user=user, env=env)
    state.save()


def spawn_marked(
    state: State, name: str, argv: list[str], *, env: dict[str, str] | None = None, user: str | None = None
) -> Process:
    """Start a program so that `down` finds it, and whatever it starts, even if it is never written down."""
    marks = {DAEMON_MARK: state.dir, "PATH": state.search_path, "SLURM_CONF": state.slurm_conf, **(env or {})}
    return processes.start_of(spawn(argv, log=state.path / "log" / f"{name}.out", env=marks, user=user))


def answers_unix(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except OSError:
            return False
    return True
