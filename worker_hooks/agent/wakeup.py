"""Lets the supervising thread sleep until a signal comes, a rank ends, or another thread has news."""

import os
import select
import signal
from contextlib import suppress


class Wakeup:
    """A self-pipe. Create it in the main thread: signal handlers live there.

    SIGTERM and SIGINT are kept in `got_signal` (the first counts). SIGUSR1, SIGUSR2 and SIGHUP, which Slurm sends to
    every process of a step on `--signal`, are for the ranks: the agent must only not die of them. They get a handler,
    not SIG_IGN, because an ignored signal would stay ignored in the ranks.
    """

    def __init__(self) -> None:
        self.got_signal: int | None = None
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    @property
    def fd(self) -> int:
        """Readable when there is news: for a caller that waits for other things too, and then calls `wait(0)`."""
        return self._read

    def wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def wait(self, limit_s: float) -> None:
        """Sleep at most `limit_s` seconds; returns early on any news."""
        if select.select([self._read], [], [], limit_s)[0]:
            with suppress(BlockingIOError):
                os.read(self._read, 4096)

    def pause(self, limit_s: float) -> bool:
        """`wait`; False once the agent was told to end."""
        self.wait(limit_s)
        return self.got_signal is None

    def _end(self, number: int, _frame: object) -> None:
        if self.got_signal is None:
            self.got_signal = number
