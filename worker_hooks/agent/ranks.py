"""The ranks of this node as child processes: started, watched, torn down. The only file that starts ranks.

Each rank leads a session and process group of its own, so that teardown reaches what it started (data loader workers)
and nothing else. Each is bound to the agent by a parent-death signal: no rank outlives a SIGKILLed agent.
Start from the main thread: the kernel sends the parent-death signal when the *thread* that forked ends.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from worker_hooks.agent.decide import RankEnd

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class RankProcess:
    """One rank. `process` is None if it could not be started."""

    rank: int
    local_rank: int
    process: "subprocess.Popen[bytes] | None"
    started_at: float
    end: RankEnd | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None


@dataclass
class RankGroup:
    """All ranks of this node, in order of their local rank."""

    ranks: list[RankProcess] = field(default_factory=list)

    @property
    def running(self) -> list[RankProcess]:
        return [rank for rank in self.ranks if rank.end is None]

    @property
    def ends(self) -> tuple[RankEnd, ...]:
        return tuple(rank.end for rank in self.ranks if rank.end is not None)

    def start(self, rank: int, program: Sequence[str], environ: Mapping[str, str], now: float) -> RankProcess:
        """Start one rank with piped output. A program that cannot run gives a rank that ended with 126 or 127."""
        local_rank = len(self.ranks)
        try:
            process = subprocess.Popen(
                list(program),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (no thread runs yet, and it makes system calls only)
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            started = RankProcess(
                rank, local_rank, None, now, RankEnd(rank, code, None, len(self.ends), launched=False)
            )
        else:
            started = RankProcess(rank, local_rank, process, now)
        self.ranks.append(started)
        return started

    def poll(self) -> list[RankProcess]:
        """Ranks that ended since the last call. They stay zombies until `reap`, so that their group id stays ours."""
        ended = []
        for rank in self.running:
            assert rank.process is not None  # one that did not start has ended
            status = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                continue
            by_exit = status.si_code == os.CLD_EXITED
            code, number = (status.si_status, None) if by_exit else (None, status.si_status)
            rank.end = RankEnd(rank.rank, code, number, order=len(self.ends))
            ended.append(rank)
        return ended

    def signal(self, number: int) -> None:
        """Send a signal to the process group of every rank, ended ones too: their children may live."""
        for rank in self.ranks:
            if rank.process is None or rank.process.returncode is not None:
                continue
            try:
                os.killpg(rank.process.pid, number)
            except (ProcessLookupError, PermissionError):
                continue

    def tear_down(self, grace_s: float, wait: Callable[[float], None]) -> list[RankProcess]:
        """SIGTERM, at most `grace_s` seconds, SIGKILL; returns the ranks that ended meanwhile. `wait` sleeps."""
        ended: list[RankProcess] = []
        deadline = time.monotonic() + grace_s
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        while self.running and time.monotonic() < deadline:
            wait(min(0.05, grace_s))
            ended += self.poll()
        self.signal(signal.SIGKILL)
        # A process in uninterruptible sleep does not die of SIGKILL either: Slurm's own limit handles it.
        limit = time.monotonic() + 2.0
        while self.running and time.monotonic() < limit:
            wait(0.02)
            ended += self.poll()
        return ended

    def reap(self) -> None:
        """Collect the zombies; call it last."""
        for rank in self.ranks:
            if rank.process is not None and rank.end is not None:
                rank.process.wait()


def _die_with(parent: int) -> Callable[[], None]:
    """Runs in the child between fork and exec: nothing but two system calls, no allocation that could block. The second
    lets the agent's py-spy look at a stuck rank where Yama restricts it; without Yama it is refused, and not needed."""

    def bind() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _LIBC.prctl(_PR_SET_PTRACER, parent, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return bind
