"""Brings records from the ranks' event files and from the agent itself into the spool, on a thread of its own.

Only this thread waits for the checkpoint root's disk: supervision and heartbeats go on when it hangs. The fence is
watched from a second thread for the same reason.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker_hooks.agent.run_folder import EventTail
from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft
from worker_hooks.protocol.generations import newest_number

PERIOD_S = 0.5
SYNC_S = 10.0
FENCE_PERIOD_S = 1.0


@dataclass
class Collector:
    """`first` is called before the first round, `tidy` in every round, both on this thread; `collected` after a round
    that brought an urgent record into the spool."""

    spool: Spool
    tail: EventTail
    collected: Callable[[], None]
    say: Callable[[str], None]
    first: Callable[[], None]
    tidy: Callable[[], None]
    _incoming: deque[Draft] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _synced_at: float = field(default_factory=time.monotonic)
    _said: set[str] = field(default_factory=set)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="relume-collector", daemon=True)
        self._thread.start()

    def add(self, kind: str, body: dict[str, Any], urgent: bool = False) -> None:
        """Take a record of the agent's own, now. Never blocks."""
        self.keep(Draft(kind, time.time(), body), urgent)

    def keep(self, draft: Draft, urgent: bool = False) -> None:
        """Take a record that has its time. Never blocks."""
        self._incoming.append(draft)
        if urgent:
            self._wake.set()

    def event(self, name: str, rank: int | None = None, urgent: bool = False, **data: Any) -> None:
        self.add("event", {"name": name, "rank": rank, "data": data}, urgent)

    def finish(self, limit_s: float) -> bool:
        """Bring in everything that is there now; False if the disk did not let it within `limit_s`."""
        self._ending.set()
        self._wake.set()
        assert self._thread is not None  # started before
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._guarded(self.first)
        while not self._ending.is_set():
            urgent = self._wake.wait(PERIOD_S)
            self._wake.clear()
            self._guarded(self._collect)
            if urgent:
                self.collected()
            self._guarded(self.tidy)
        self._guarded(self._collect)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Telemetry must outlive its own mistakes: an error nobody foresaw is said once, the next round goes on."""
        try:
            work()
        except Exception as error:
            text = f"collecting records failed: {type(error).__name__}: {error}"
            self._say_once(text, text)

    def _collect(self) -> None:
        drafts = self.tail.read()
        while self._incoming:
            drafts.append(self._incoming.popleft())
        self.spool.append(drafts, self.tail.offsets)
        waiting = self.spool.unacked > 0 and time.monotonic() - self._synced_at > SYNC_S
        if waiting:
            self._synced_at = time.monotonic()
        if not self.spool.flush(sync=waiting):
            self._say_once("spool", f"records are kept in memory only: {self.spool.error}")
        if self.tail.complaint:
            self._say_once("tail", self.tail.complaint)

    def _say_once(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.say(text)


class FenceWatch:
    """Looks once a second whether a newer generation exists. Storage that cannot be read says nothing."""

    def __init__(self, run: Path, generation: int, superseded: Callable[[int], None]) -> None:
        self._run_folder = run
        self._generation = generation
        self._superseded = superseded
        self._ending = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="relume-fence", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()

    def _watch(self) -> None:
        while not self._ending.wait(FENCE_PERIOD_S):
            try:
                number = newest_number(self._run_folder)
            except OSError:
                continue
            if number > self._generation:
                self._superseded(number)
                return
