"""What tests of the lab look at from outside: ports, processes, and the lab as a command."""

import contextlib
import pwd
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from deploy.lab.cluster import Lab

LAB_PY = Path(__file__).parents[2] / "deploy" / "lab" / "lab.py"
SYSTEM_PYTHON = "/usr/bin/python3"


def eventually(check: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)


def lab_py(*argv: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SYSTEM_PYTHON, LAB_PY, *argv], capture_output=True, text=True, timeout=timeout, cwd="/", check=False
    )


def connect(lab: Lab, which: int, *, training: bool = False, on: int | None = None) -> str:
    """What a TCP connection to a node's slurmd meets, seen from the controller's host or from another node."""
    node = lab.state.node(which)
    address = node.training if training else node.management
    if on is not None:
        probe = (
            f"import socket\ntry: socket.create_connection(('{address}', {node.slurmd_port}), 1).close(); print('open')"
            "\nexcept ConnectionRefusedError: print('refused')\nexcept OSError: print('silent')"
        )
        return lab.run(SYSTEM_PYTHON, "-c", probe, on=on).stdout.strip()
    try:
        socket.create_connection((address, node.slurmd_port), 1).close()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    return "open"


def commands(pids: Iterable[int]) -> list[str]:
    """The command lines of those that still live."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").replace("\0", " "))
    return found


def job_processes(lab: Lab, which: int) -> list[int]:
    owner = pwd.getpwnam(lab.users["owner"]).pw_uid
    return [pid for pid in lab.pids(which) if Path(f"/proc/{pid}").stat().st_uid == owner]
