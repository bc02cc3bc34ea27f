"""The lab's memory: DIR/lab.json, written before each thing is made, and the lock that keeps commands apart.

Every name the lab uses carries the lab's id and is in the first version of the file, so a crash at any later moment
leaves nothing that the file does not name. Process ids can only be added afterwards; `processes` finds the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy.lab import running
from deploy.lab.errors import LabError

FORMAT = 1
DEFAULT_PARENT = Path("/var/tmp")
PREFIX = "relume-lab-"


@dataclass
class Process:
    """A pid and its start time in clock ticks: together they never mean another process."""

    pid: int
    start: int


@dataclass
class Node:
    name: str
    management: str
    training: str
    slurmd_port: int
    netns: str | None
    port_management: str  # the switch's end of eth0 and of eth1; "" in loopback mode
    port_training: str
    kernel_log: str = ""  # records as /dev/kmsg gives them
    boot_id: str = ""  # what the node's processes read as the kernel's
    host_died: bool = False  # the next slurmd reports a reboot
    slurmd: Process | None = None
    sensor: Process | None = None


@dataclass
class Network:
    switch: str  # namespace that holds both bridges
    host_link: str  # the host's end of its cable to the management bridge
    management_net: str
    training_net: str
    made_netns_mount: bool = False


@dataclass
class State:
    id: str
    dir: str
    mode: str  # "netns" or "loopback"
    slurm_version: str
    cluster: str
    slurmctld_port: int
    kill_wait: int
    management_host: str
    users: dict[str, str]
    nodes: list[Node]
    network: Network | None
    full: bool = False  # accounting, more users and partitions: README.md
    slurmdbd_port: int = 0
    slurm_path: str = ""  # folders of a Slurm that is not the system's, for the front of PATH
    settings: dict[str, str] = field(default_factory=dict)  # lines of slurm.conf that replace the lab's own
    phase: str = "starting"  # starting, up, stopping
    up: Process | None = None
    daemons: dict[str, Process] = field(default_factory=dict)
    filler: Process | None = None
    format: int = FORMAT

    @property
    def path(self) -> Path:
        return Path(self.dir)

    @property
    def slurm_conf(self) -> str:
        return f"{self.dir}/slurm.conf"

    @property
    def search_path(self) -> str:
        """PATH for whatever is started in this lab."""
        return f"{self.slurm_path}:{running.PATH}" if self.slurm_path else running.PATH

    @property
    def env(self) -> dict[str, str]:
        """What a program needs to reach this lab's Slurm."""
        return {"SLURM_CONF": self.slurm_conf, **({"PATH": self.search_path} if self.slurm_path else {})}

    def node(self, which: str | int) -> Node:
        """A node by name (`gpu2`) or number (`2`)."""
        for number, node in enumerate(self.nodes, 1):
            if str(which) in (node.name, str(number)):
                return node
        raise LabError(f"no node {which!r}: this lab has {', '.join(n.name for n in self.nodes)}")

    def as_json(self) -> dict[str, Any]:
        """The file's content: the fields, and what a reader would otherwise derive from them."""
        derived = {
            "slurm_conf": self.slurm_conf,
            "env": self.env,
            "log_dir": f"{self.dir}/log",
            "homes": {role: f"{self.dir}/home/{role}" for role in self.users},
        }
        return {**asdict(self), **derived}

    def save(self) -> None:
        new = self.path / ".lab.json.new"
        new.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        new.replace(self.path / "lab.json")


def load(directory: Path) -> State | None:
    """The state in `directory`, or None when `up` was stopped before it wrote any."""
    try:
        raw = json.loads((directory / "lab.json").read_text())
    except FileNotFoundError:
        return None
    if raw.get("format") != FORMAT:
        raise LabError(f"{directory}/lab.json: format {raw.get('format')!r}, this lab.py reads {FORMAT}")
    known = {name: raw[name] for name in State.__dataclass_fields__ if name in raw}
    known["nodes"] = [
        Node(**{**n, "slurmd": _process(n["slurmd"]), "sensor": _process(n.get("sensor"))}) for n in raw["nodes"]
    ]
    known["network"] = Network(**raw["network"]) if raw["network"] else None
    known["up"] = _process(raw["up"])
    known["filler"] = _process(raw.get("filler"))
    known["daemons"] = {name: Process(**p) for name, p in raw["daemons"].items()}
    return State(**known)


def _process(raw: dict[str, int] | None) -> Process | None:
    return Process(**raw) if raw else None


def lab_id(directory: Path) -> str:
    """Eight hex digits, from the directory alone: what a lab made can be told from its path."""
    named = re.fullmatch(PREFIX + "([0-9a-f]{8})", directory.name)
    return named[1] if named else hashlib.blake2b(str(directory).encode(), digest_size=4).hexdigest()


def fresh_directory() -> Path:
    return DEFAULT_PARENT / f"{PREFIX}{os.urandom(4).hex()}"


def find(given: str | None) -> Path:
    """The lab's directory: the one given, else the only one in the default place."""
    if given:
        directory = Path(given).resolve()
        if not directory.is_dir():
            raise LabError(f"{directory}: no lab there")
        return directory
    found = sorted(p for p in DEFAULT_PARENT.glob(PREFIX + "*") if p.is_dir())
    if len(found) == 1:
        return found[0]
    if not found:
        raise LabError(f"no lab found in {DEFAULT_PARENT}; `lab.py up` makes one, --dir names one elsewhere")
    raise LabError("several labs found, name one with --dir: " + " ".join(map(str, found)))


def read(directory: Path) -> State:
    state = load(directory)
    if state is None:
        raise LabError(f"{directory}: not a lab, or its `up` was stopped at once; `lab.py down --dir` removes it")
    return state


@contextlib.contextmanager
def locked(path: Path, *, seconds: float = 60, hand_down: bool = False) -> Iterator[None]:
    """Hold the lock on `path` (made if missing; a directory will do). `hand_down`: short commands hold it too."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + seconds
        while not _try_lock(fd):
            if time.monotonic() > end:
                raise LabError(f"{path} is held by another lab command for more than {seconds:g} s")
            time.sleep(0.05)
        with running.inherit(fd) if hand_down else contextlib.nullcontext():
            yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
