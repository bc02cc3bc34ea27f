"""Wakes the sweep after a decisive message, without ever making an agent wait.

The sweep also runs by itself every few seconds, so a wake that gets lost costs time, never correctness. The call to the
broker is made on a thread of its own: a request only leaves a note. While the broker is away a breaker keeps the
thread from knocking at every message.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

log = logging.getLogger(__name__)


def _wake_sweep() -> None:
    from controller.tasks import wake  # late: importing ingest must not bring Celery along

    wake()


@dataclass
class Waker:
    """`wake` is called once for any number of notes that came while it was busy."""

    wake: Callable[[], None] = _wake_sweep
    monotonic: Callable[[], float] = time.monotonic
    _note: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _failures: int = 0
    _closed_until: float = 0.0

    def leave_note(self) -> None:
        """Returns at once. A forked web process starts its own thread at its first note."""
        self._note.set()
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="relume-waker", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._note.wait()
            self._note.clear()
            self.knock()

    def knock(self) -> bool:
        """One wake, unless the breaker is open; True if it got through."""
        if self.monotonic() < self._closed_until:
            return False
        try:
            self.wake()
        except Exception as error:  # whatever the broker's client throws: the message is committed, the sweep will come
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**self._failures)
            self._failures = min(self._failures + 1, 10)
            self._closed_until = self.monotonic() + pause
            log.warning("the sweep could not be woken (%s); next try in %.0f s", error, pause)
            return False
        self._failures = 0
        return True


WAKER = Waker()
