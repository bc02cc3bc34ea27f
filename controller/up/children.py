"""One child process: started as its user, tied to our life, and started again when it dies.

`death_signal` is what the kernel sends the child when this process is killed: nothing may outlive `up`.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.up.accounts import Account

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WATCHED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S = 0.5, 30.0, 30.0

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Spec:
    """What to run. `last`: stopped only when the others are gone (the broker they talk to)."""

    name: str
    argv: Sequence[str]
    account: Account
    environment: Mapping[str, str]
    cwd: Path
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGTERM
    descriptors: Sequence[int] = ()
    last: bool = False


@dataclass
class Child:
    spec: Spec
    pid: int | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    failures: int = 0
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self, now: float) -> None:
        spec = self.spec
        self._process = subprocess.Popen(
            list(spec.argv),
            cwd=spec.cwd,
            env={**spec.environment, **spec.account.environment()},
            stdin=subprocess.DEVNULL,
            pass_fds=tuple(spec.descriptors),
            umask=0o007,
            preexec_fn=tied_to(os.getpid(), spec.death_signal),  # noqa: PLW1509 - `up` has one thread
            **spec.account.popen(),  # type: ignore[call-overload]
        )
        self.pid, self.started_at = self._process.pid, now

    def ended(self, status: int, now: float) -> float:
        """Note its death; returns the pause until the next start. A child that ran steadily is forgiven its past."""
        if self._process is not None:
            self._process.returncode = os.waitstatus_to_exitcode(status)  # reaped by us, not by Popen
        self.failures = 0 if now - self.started_at >= STEADY_S else self.failures + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(self.failures - 1, 0), 10))
        self.pid, self.due_at = None, now + pause
        return pause

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)  # not reaped yet, so the pid is still its own


def tied_to(parent: int, number: signal.Signals) -> Callable[[], None]:
    """For preexec_fn: runs in the child after its change of user, which would undo it."""

    def tie() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        _libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # the parent died in between

    return tie


def adopt_orphans() -> None:
    """Processes that a killed child leaves behind become ours, so that they can be found and ended."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def own_children() -> list[int]:
    """The pids whose parent is this process."""
    me, found = str(os.getpid()), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[1] == me:
                found.append(int(entry.name))
    return found
