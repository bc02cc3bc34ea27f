"""Which processes belong to the lab, and ending them for certain.

Four independent signs, because a crash can lose any one of them: the pid was written down; the process lives in one
of the lab's network namespaces; its user is one of the lab's; its environment carries the daemons' mark, or that of
one of its ancestors does (a job of root's in loopback mode has no other).
"""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.errors import LabError
from deploy.lab.running import DAEMON_MARK, spawned
from deploy.lab.state import Node, Process, State

PROC = Path("/proc")
NETNS_DIR = Path("/run/netns")


@dataclass(frozen=True)
class Seen:
    """A live process as /proc shows it.

    `uids`: real, effective, saved and file-system user; empty for a process of another container (another pid
    namespace), whose numbers mean other users. Its 999 may well be a database.
    """

    pid: int
    parent: int
    start: int
    uids: frozenset[int]
    netns: tuple[int, int] | None
    environ: frozenset[bytes]

    def marked(self, name: str, value: str) -> bool:
        return f"{name}={value}".encode() in self.environ


def start_of(pid: int) -> Process:
    """`pid` with its start time, to be written down. Only for a process that we have just started."""
    return Process(pid, int(_stat(pid)[19]))


def is_alive(process: Process | None) -> bool:
    """True if exactly this process runs. A zombie is dead; ours are reaped on the way."""
    if process is None:
        return False
    _reap(process.pid)
    try:
        fields = _stat(process.pid)
    except OSError:
        return False
    return int(fields[19]) == process.start and fields[0] not in "ZX"


def started_at(process: Process) -> float:
    """Seconds since the epoch, good to a second or so."""
    boot = next(line for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + process.start / os.sysconf("SC_CLK_TCK")


def in_lab(state: State) -> list[int]:
    """Every live process of the lab, on whatever sign."""
    uids = lab_uids(state)
    spaces = {space for node in state.nodes if (space := netns_of(node.netns))}
    recorded = {(p.pid, p.start) for p in _recorded(state)}

    def belongs(seen: Seen) -> bool:
        return (
            (seen.pid, seen.start) in recorded
            or seen.netns in spaces
            or bool(seen.uids & uids)
            or seen.marked(DAEMON_MARK, state.dir)
        )

    return with_descendants(survey(), belongs)


def on_node(state: State, node: Node, everybody: list[Seen] | None = None) -> list[int]:
    """Every live process of one node, in a new look or among `everybody`."""
    everybody = survey() if everybody is None else everybody
    if node.netns:
        space = netns_of(node.netns)
        return [seen.pid for seen in everybody if space and seen.netns == space]
    uids = lab_uids(state)

    def belongs(seen: Seen) -> bool:
        if seen.marked(DAEMON_MARK, state.dir):
            return seen.marked("RELUME_LAB_NODE", node.name)
        return bool(seen.uids & uids) and seen.marked("SLURMD_NODENAME", node.name)

    return with_descendants(everybody, belongs)


def of_jobs(state: State, epilog_mark: str) -> list[int]:
    """What jobs run on the nodes, and the waits of their epilogs: none of Slurm's own."""
    everybody, uids = survey(), lab_uids(state)
    on_nodes = {pid for node in state.nodes for pid in on_node(state, node, everybody)}
    return [s.pid for s in everybody if s.pid in on_nodes and (s.uids & uids or s.marked(epilog_mark, state.id))]


def survey() -> list[Seen]:
    """All live processes but our own and our ancestors (a lab never ends who called it)."""
    spared = _ourselves()
    return [seen for entry in PROC.iterdir() if entry.name.isdigit() and (seen := _look(int(entry.name), spared))]


def with_descendants(everybody: Iterable[Seen], belongs: Callable[[Seen], bool]) -> list[int]:
    everybody = list(everybody)
    chosen = {seen.pid for seen in everybody if belongs(seen)}
    grown = True
    while grown:
        more = {seen.pid for seen in everybody if seen.parent in chosen} - chosen
        chosen |= more
        grown = bool(more)
    return sorted(chosen)


def end_all(find: Callable[[], list[int]], *, seconds: float = 15) -> int:
    """SIGKILL what `find` returns until it finds nothing twice running; the number of processes ended.

    Twice, because a process in the middle of a fork can show up behind the first look.
    """
    ended: set[int] = set()
    empty = 0
    end = time.monotonic() + seconds
    while empty < 2:
        pids = find()
        for pid in pids:
            kill(pid)
            _reap(pid)
        ended.update(pids)
        empty = 0 if pids else empty + 1
        if pids and time.monotonic() > end:
            raise LabError(f"processes {pids} do not die within {seconds:g} s of SIGKILL")
        time.sleep(0.02)
    return len(ended)


def kill(pid: int, sign: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        pass


def lab_uids(state: State) -> set[int]:
    uids = set()
    for name in state.users.values():
        try:
            uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue  # not made yet, or gone already
    return uids


def tree(root: Process) -> list[int]:
    """The process and its descendants; [] once it is gone."""
    return with_descendants(survey(), lambda seen: (seen.pid, seen.start) == (root.pid, root.start))


def netns_of(name: str | None) -> tuple[int, int] | None:
    """Device and inode of a named namespace; None when there is none (or only its empty file, after a crash)."""
    try:
        found = (NETNS_DIR / name).stat() if name else None
    except OSError:
        return None
    own = Path("/proc/self/ns/net").stat()
    if found is None or found.st_dev != own.st_dev or found.st_ino == own.st_ino:
        return None
    return found.st_dev, found.st_ino


def _recorded(state: State) -> list[Process]:
    return [
        *state.daemons.values(),
        *([state.filler] if state.filler else []),
        *(daemon for node in state.nodes for daemon in (node.slurmd, node.sensor) if daemon),
    ]


def _look(pid: int, spared: set[int]) -> Seen | None:
    if pid in spared:
        return None
    entry = PROC / str(pid)
    try:
        fields = _stat(pid)
        if fields[0] in "ZX":
            _reap(pid)
            return None
        environ = (entry / "environ").read_bytes()
        status = (entry / "status").read_text()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        contained = (entry / "ns" / "pid").stat().st_ino != (PROC / "self" / "ns" / "pid").stat().st_ino
        space = (entry / "ns" / "net").stat()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it ended while we looked
    except PermissionError:
        return None  # a kernel thread, or a process guarded from root: never one of ours
    return Seen(
        pid,
        parent=int(fields[1]),
        start=int(fields[19]),
        uids=frozenset() if contained else frozenset(map(int, uids)),
        netns=(space.st_dev, space.st_ino),
        environ=frozenset(environ.split(b"\0")),
    )


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, ... start time at index 19."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _ourselves() -> set[int]:
    pid = os.getpid()
    line = set()
    while pid > 0:
        line.add(pid)
        try:
            pid = int(_stat(pid)[1])
        except OSError:
            break
    return line


def _reap(pid: int) -> None:
    """A daemon started by this very process ends as its zombie. Other children are others' to wait for."""
    if pid in spawned and os.waitpid(pid, os.WNOHANG) != (0, 0):
        spawned.discard(pid)
