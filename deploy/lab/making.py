"""`up`: plan, write the plan down, make it, wait until every node is idle. And `down`, from whatever there is."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.lab import accounting, daemons, network, processes, rights, slurm_files, users
from deploy.lab.errors import LabError, MissingRight
from deploy.lab.running import run, wait_for
from deploy.lab.slurm import node_states
from deploy.lab.state import Node, Process, State, fresh_directory, lab_id, load, locked

MACHINE_LOCK = Path("/run")  # a directory's lock leaves no file behind
MAX_NODES = 64
SLURMS_KILL_WAIT = 30
SHORT_KILL_WAIT = 5  # slurmd waits no shorter


@dataclass(frozen=True)
class Wish:
    """What `up` is asked for. `kill_wait` None: Slurm's own in the plain lab, a short one in the full lab."""

    nodes: int = 4
    loopback: bool = False
    full: bool = False
    kill_wait: int | None = None

    @property
    def seconds_before_sigkill(self) -> int:
        if self.kill_wait is not None:
            return self.kill_wait
        return SHORT_KILL_WAIT if self.full else SLURMS_KILL_WAIT


def up(directory: Path | None, wish: Wish, *, keep: bool = False) -> State:
    """Make a lab and return its state; on any failure say why, and leave nothing behind unless `keep`."""
    rights.check(loopback=wish.loopback, full=wish.full)
    if not 1 <= wish.nodes <= MAX_NODES:
        raise LabError(f"--nodes {wish.nodes}: from 1 to {MAX_NODES}")
    directory = _new_directory(directory)
    try:
        with locked(directory / "lab.lock", hand_down=True):
            return _make(directory, wish)
    except BaseException:
        if not keep and not _is_foreign(directory):
            down(directory)
        raise


def down(directory: Path) -> bool:
    """Remove the lab, however far `up` came; True if there was one to remove."""
    rights.check_root()
    state = load(directory)
    if state is None and not _is_only_started(directory):
        raise LabError(f"{directory} is not a lab (no lab.json in it): it is left alone")
    if state and state.up and state.up.pid != os.getpid():
        _end_up(state.up)
    with locked(directory / "lab.lock", hand_down=True):
        state = load(directory)
        if state:
            _remove(state)
        _unmount_below(directory)
        _remove_files(directory)
    return state is not None


def _remove_files(directory: Path) -> None:
    """lab.json goes last but one: a `down` that is ended in the middle can be run again."""
    for path in directory.iterdir():
        if path.name == "lab.json":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    shutil.rmtree(directory)


def wait_until_idle(state: State, *, seconds: float = 90) -> None:
    """Every node idle and answering; else `LabError` with each node that is not, and the tails of the logs."""
    seen: dict[str, str] = {}

    def all_idle() -> bool:
        _check_daemons(state)
        seen.update(node_states(state))
        return all(seen.get(node.name) == "idle" for node in state.nodes)

    try:
        wait_for("every node idle", all_idle, seconds=seconds)
    except LabError as error:
        late = [node.name for node in state.nodes if seen.get(node.name) != "idle"]
        words = ", ".join(f"{name} {seen.get(name, 'unknown')}" for name in late)
        raise LabError(f"{error}: {words}\n{_tails(state, 'slurmctld', f'slurmd-{late[0]}')}") from None


def _make(directory: Path, wish: Wish) -> State:
    with locked(MACHINE_LOCK):
        state = _plan(directory, wish)
        state.save()
        users.create(state)
        if state.network:
            network.create(state)
    slurm_files.write(state)
    daemons.start_munged(state)
    if state.full:
        accounting.make(state)
    daemons.start_slurmctld(state)
    for node in state.nodes:
        daemons.start_slurmd(state, node)
    wait_until_idle(state)
    if state.full:
        accounting.wait_until_registered(state)
    state.phase, state.up = "up", None
    state.save()
    return state


def _plan(directory: Path, wish: Wish) -> State:
    """Everything the lab will be, with every name in it; nothing is made yet but the directory."""
    the_id = lab_id(directory)
    version = "{}.{:02}".format(*rights.slurm_version())
    if wish.loopback:
        net, nodes, host = None, _loopback_nodes(wish.nodes), "127.0.0.1"
    else:
        net, nodes, host = network.plan(the_id, wish.nodes)
        net = replace(net, made_netns_mount=network.owns_netns_mount())
    for node in nodes:
        node.kernel_log = f"{directory}/kernel/{node.name}"
    port = daemons.free_port("0.0.0.0", {node.slurmd_port for node in nodes})
    state = State(
        id=the_id,
        dir=str(directory),
        mode="loopback" if wish.loopback else "netns",
        slurm_version=version,
        cluster=f"lab{the_id}",
        slurmctld_port=port,
        kill_wait=wish.seconds_before_sigkill,
        management_host=host,
        users=users.names(the_id, full=wish.full),
        nodes=nodes,
        network=net,
        full=wish.full,
        slurmdbd_port=daemons.free_port("0.0.0.0", {port, *(node.slurmd_port for node in nodes)}) if wish.full else 0,
        slurm_path=rights.slurm_path(),
        up=processes.start_of(os.getpid()),
    )
    foreign = users.taken(state) + network.taken(state)
    if foreign:
        raise LabError(f"another lab already uses the names {', '.join(foreign)}: choose another --dir")
    return state


def _loopback_nodes(count: int) -> list[Node]:
    nodes: list[Node] = []
    for n in range(1, count + 1):
        port = daemons.free_port("127.0.0.1", {node.slurmd_port for node in nodes})
        nodes.append(Node(f"gpu{n}", "127.0.0.1", "127.0.0.1", port, None, "", ""))
    return nodes


def _new_directory(given: Path | None) -> Path:
    directory = (given or fresh_directory()).resolve()
    # Slurm's files have no quoting, and a unix socket's path ends at 108 characters.
    if not re.fullmatch(r"[A-Za-z0-9/._+-]{2,80}", str(directory)):
        raise LabError(f"{directory}: the lab's path must be at most 80 letters, digits and /._+-")
    for parent in directory.parents:
        if parent.exists() and not parent.stat().st_mode & 0o001:
            raise MissingRight(f"{parent} is closed to other users: the jobs' owner could not reach a lab in it")
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise LabError(f"{directory} is not empty: a lab needs a directory of its own")
    directory.chmod(0o755)
    return directory


def _is_only_started(directory: Path) -> bool:
    """Nothing in it but what `up` writes before its plan."""
    return {entry.name for entry in directory.iterdir()} <= {"lab.lock", ".lab.json.new"}


def _is_foreign(directory: Path) -> bool:
    return load(directory) is None and not _is_only_started(directory)


def _end_up(up_process: Process) -> None:
    """An `up` that still runs must not go on making things. Its short commands are waited for with the lock."""
    processes.end_all(lambda: [up_process.pid] if processes.is_alive(up_process) else [])


def _remove(state: State) -> None:
    state.phase = "stopping"
    state.save()
    processes.end_all(lambda: processes.in_lab(state))
    with locked(MACHINE_LOCK):
        network.remove(state)
    users.remove(state)


def _unmount_below(directory: Path) -> None:
    """The lab mounts nothing in the host's namespace; what a user of the lab mounted in its folder goes too."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed(points):
        if Path(point).is_relative_to(directory):
            run(["umount", "--lazy", point])


def _check_daemons(state: State) -> None:
    for name, process in state.daemons.items():
        if not processes.is_alive(process):
            raise LabError(f"{name} ended\n{_tails(state, name)}")


def _tails(state: State, *daemon_names: str) -> str:
    """The ends of the daemons' logs; of one that never opened its log, what it said on stderr."""
    logs = [state.path / "log" / f"{name}.log" for name in daemon_names]
    logs = [log if log.exists() and log.stat().st_size else log.with_suffix(".out") for log in logs]
    return "\n".join(f"  {log}:\n{daemons.log_tail(log)}" for log in logs)
