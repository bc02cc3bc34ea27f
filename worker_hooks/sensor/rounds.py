"""Each reader on a thread of its own: one that fails or hangs says so in its status, and costs nobody else anything.

A driver that lost its device may not answer for minutes. That is a status of the reader, never a sign.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from worker_hooks.protocol.sense import ABSENT, OK, STATUS_CHARS
from worker_hooks.sensor.standing import Standing
from worker_hooks.signs.sign import Sign

HANGS_AFTER_S = 15.0
Read = Callable[[float], list[Sign] | None]


class Partly(Exception):
    """A reader that could not read all it should: its words become the status, and what it found counts."""

    def __init__(self, words: str, signs: list[Sign]) -> None:
        super().__init__(words)
        self.signs = signs


@dataclass
class Round:
    """One reader, asked every `interval_s` seconds; `give` gets its signs, on its thread. `cpu_s`: what it has cost."""

    name: str
    read: Read
    interval_s: float
    give: Callable[[list[Sign]], None]
    cpu_s: float = 0.0
    first: threading.Event = field(default_factory=threading.Event)
    _status: str = OK
    _began: float | None = None
    _standing: Standing = field(default_factory=Standing)

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"relume-{self.name}", daemon=True).start()

    @property
    def status(self) -> str:
        began = self._began
        waited = 0.0 if began is None else time.monotonic() - began
        return f"does not come back, for {waited:.0f} s now" if waited > HANGS_AFTER_S else self._status

    def once(self) -> None:
        now = time.monotonic()
        self._began = now
        due: list[Sign] = []
        try:
            signs = self.read(now)
            self._status = ABSENT if signs is None else OK
            due = self._standing.due(signs or [], now)
        except Partly as partly:
            self._status = f"{OK}, but {partly}"[:STATUS_CHARS]
            due = self._standing.due(partly.signs, now)
        except Exception as error:  # whatever a driver or a file of its makes of itself
            self._status = f"{type(error).__name__}: {error}"[:STATUS_CHARS]
        self._began = None
        if due:
            self.give(due)
        self.cpu_s = time.thread_time()
        self.first.set()

    def _run(self) -> None:
        following = time.monotonic()
        while True:
            self.once()
            following = max(following + self.interval_s, time.monotonic())
            time.sleep(max(0.0, following - time.monotonic()))
