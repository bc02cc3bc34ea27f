"""Keeps the children: starts them, starts again what dies, and stops all of it within a bounded time.

One loop, woken by signals. A child that is killed with -9 leaves its own children to us (we are their subreaper); they
are ended before the child is started again, so that no two generations of it ever work side by side.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.up.children import WATCHED, Child, Spec, adopt_orphans, own_children

TICK_S = 0.25
STOP_LIMIT_S = 8.0
LAST_LIMIT_S = 3.0


@dataclass
class Supervisor:
    say: Callable[[str], None]
    monotonic: Callable[[], float] = time.monotonic
    children: list[Child] = field(default_factory=list)
    stopping: bool = False

    def begin(self) -> None:
        """From here on signals wait for the loop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        adopt_orphans()

    def add(self, spec: Spec) -> None:
        child = Child(spec)
        self.children.append(child)
        child.start(self.monotonic())

    def wait_for(self, ready: Callable[[], bool], limit_s: float) -> bool:
        """Keep the children until `ready`; False when a stop was asked for or the time is over."""
        end = self.monotonic() + limit_s
        while not self.stopping and self.monotonic() < end:
            if ready():
                return True
            self.turn(0.05)
        return False

    def run(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP."""
        while not self.stopping:
            self.turn(TICK_S)

    def turn(self, limit_s: float) -> None:
        number = signal.sigtimedwait(WATCHED, limit_s)
        if number is not None and number.si_signo != signal.SIGCHLD:
            self.stopping = True
        self._reap()
        if not self.stopping:
            self._restart()

    def _reap(self) -> None:
        died = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            died |= self._ended(pid, status)
        if died:
            self._end_orphans()

    def _ended(self, pid: int, status: int) -> bool:
        for child in self.children:
            if child.pid == pid:
                pause = child.ended(status, self.monotonic())
                if not self.stopping:
                    self.say(f"{child.spec.name} (pid {pid}) {_how(status)}; starts again in {pause:g} s")
                return True
        return False

    def _end_orphans(self) -> None:
        known = {child.pid for child in self.children}
        for pid in own_children():
            if pid not in known:
                _kill(pid)

    def _restart(self) -> None:
        now = self.monotonic()
        for child in self.children:
            if child.pid is None and child.due_at <= now:
                child.start(now)

    def stop(self) -> None:
        """Ask, wait, then kill; the broker after those who talk to it. Afterwards no descendant is left."""
        self.stopping = True
        self._stop([child for child in self.children if not child.spec.last], STOP_LIMIT_S)
        self._stop([child for child in self.children if child.spec.last], LAST_LIMIT_S)
        while leftovers := own_children():
            for pid in leftovers:
                _kill(pid)
            self._reap()
            time.sleep(0.01)

    def _stop(self, children: list[Child], limit_s: float) -> None:
        for child in children:
            child.signal(child.spec.stop_signal)
        end = self.monotonic() + limit_s
        while any(child.pid is not None for child in children) and self.monotonic() < end:
            self.turn(0.05)
        for child in children:
            if child.pid is not None:
                self.say(f"{child.spec.name} (pid {child.pid}) did not stop in {limit_s:g} s and is killed")
                child.signal(signal.SIGKILL)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # gone by itself


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
