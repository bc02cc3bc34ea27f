"""Starting programs: short commands with a time limit, and daemons that outlive us.

Short commands inherit the lab's lock (`state.Lock`). If `up` is killed while `useradd` runs, the lock stays taken
until `useradd` has ended, so `down` never tidies up under a command that is still making something.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deploy.lab.errors import LabError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Marks the lab's daemons, and what they start, for `down`: a pid that was never written down is still found.
DAEMON_MARK = "RELUME_LAB_DAEMON"

# Daemons that are children of this very process and not yet waited for.
spawned: set[int] = set()
_inherited: list[int] = []


@contextlib.contextmanager
def inherit(fd: int) -> Iterator[None]:
    """Every short command started inside holds `fd` open until it ends."""
    _inherited.append(fd)
    try:
        yield
    finally:
        _inherited.remove(fd)


def run(
    argv: Sequence[str], *, timeout: float = 20, check: bool = True, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one short command as we are. `LabError` carries its own words when it fails or takes too long."""
    env = {"PATH": PATH, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            pass_fds=tuple(_inherited),
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(argv)}: no answer within {timeout:g} s") from None
    except FileNotFoundError:
        raise LabError(f"{argv[0]}: no such program") from None
    if check and done.returncode:
        words = (done.stderr or done.stdout).strip() or f"exit {done.returncode}"
        raise LabError(f"{' '.join(argv)}: {words}")
    return done


def spawn(argv: Sequence[str], *, log: Path, env: dict[str, str], user: str | None = None) -> int:
    """Start a daemon in a session of its own; the pid stays the same through every exec of `argv`.

    posix_spawn instead of Popen: the daemon is meant to outlive the object that started it.
    """
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    # A container's limit of a billion open files makes daemons that close them one by one hang for minutes.
    shell = ["/bin/sh", "-c", 'umask 022; cd /; ulimit -n 65536 2>/dev/null; exec "$@"', "sh"]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(
        shell[0],
        [*shell, *drop, *argv],
        {"PATH": PATH, "LANG": "C.UTF-8", **env},
        file_actions=files,
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
    )
    spawned.add(pid)
    return pid


def wait_for(what: str, check: Callable[[], bool], *, seconds: float, every: float = 0.1) -> None:
    """Poll `check` until it is true; `LabError` naming `what` when the time is up."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise LabError(f"{what}: not within {seconds:g} s")
        time.sleep(every)
