"""One thread per rank that works while training goes on: saves, and otherwise small pieces of idle work."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

Job = Callable[[], None]


class Background:
    """`idle()` does one short piece of work and says in how many seconds it wants to be asked again.

    Jobs and `idle` must handle their own errors; one that escapes is handed to `failed` and the thread goes on.
    """

    def __init__(self, idle: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        self._idle = idle
        self._failed = failed
        self._jobs: list[Job] = []
        self._running = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        """Do this next."""
        with self._changed:
            self._jobs.append(job)
        self.wake()

    def wake(self) -> None:
        """Ask `idle` now. The thread starts when it is first needed: a run that never saves has none."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="relume-saver", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Until no job is queued or running; False if the time was not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def close(self, timeout: float) -> None:
        """No more idle work; jobs that are queued are still done, if the time is enough."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _loop(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                if not self._jobs and not self._closed:
                    self._changed.wait(pause)
                if not self._jobs and self._closed:
                    return
                job = self._jobs.pop(0) if self._jobs else None
                self._running = job is not None
            pause = self._do(job)
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _do(self, job: Job | None) -> float:
        try:
            if job is not None:
                job()
            return self._idle()
        except Exception as error:
            with suppress(Exception):
                self._failed(error)
            return 1.0


def wait_until(answer: Callable[[], bool], timeout: float, poll_s: float = 0.01) -> bool:
    """Ask until it says yes; False when the time is over."""
    until = time.monotonic() + timeout
    while not answer():
        if time.monotonic() > until:
            return False
        time.sleep(poll_s)
    return True
