"""How far a staged share has been copied: the training thread tells, the writer follows it."""

import errno
import threading
import time
from typing import Protocol

# A copy runs at the speed of memory; one that takes longer than this is held by something, and the save fails.
COPY_LIMIT_S = 600.0
_ASK_S = 0.005


class Mark(Protocol):
    """A CUDA event: the copies before it are complete when it says so."""

    def synchronize(self) -> None: ...


class Progress:
    """Of one save. Every wait is for the writer's thread, and ends with an error if the copy does."""

    def __init__(self) -> None:
        self._filled = 0
        self._done = False
        self._mark: Mark | None = None
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def advance(self, filled: int, mark: Mark | None) -> None:
        """Everything before byte `filled` of the buffer is copied, once `mark` (if there is one) is reached."""
        with self._changed:
            self._filled, self._mark = filled, mark
            self._changed.notify_all()

    def complete(self, error: BaseException | None = None) -> None:
        """There comes no more: all is copied, unless there was an error."""
        with self._changed:
            self._done, self._error = True, error
            self._changed.notify_all()

    def over(self) -> None:
        """Wait until all is copied or has failed, by asking: a waiter that is told takes the core of the training
        thread just as that is about to go on (measured: 3 ms of the 50 that a save takes)."""
        until = time.monotonic() + COPY_LIMIT_S
        while not self._done and time.monotonic() < until:
            time.sleep(_ASK_S)

    def reach(self, place: int) -> int | None:
        """Wait until byte `place` is passed: how far it is filled then; None for all of it.

        Raises OSError if the copy failed or stands still.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._done or self._filled >= place, COPY_LIMIT_S):
                raise OSError(errno.ETIMEDOUT, f"the state was not copied within {COPY_LIMIT_S:.0f} s")
            if self._error is not None:
                raise OSError(errno.EIO, f"the state was not copied: {type(self._error).__name__}: {self._error}")
            filled, mark = None if self._done else self._filled, self._mark
        if mark is not None:
            mark.synchronize()
        return filled
