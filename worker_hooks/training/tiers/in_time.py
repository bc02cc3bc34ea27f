"""Work on a disk that may not answer: what one thread waits for has a limit, whatever the disk does."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Unanswered(OSError):
    """The disk did not answer in time, now or earlier."""


class InTime:
    """Once something did not end in time nothing more is tried: each try would leave another thread waiting."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.given_up = False

    def __call__(self, act: Callable[[], T], limit_s: float) -> T:
        """What `act` returns or raises. Raises Unanswered; `act` may go on then, so it must not be what counts."""
        if self.given_up:
            raise Unanswered(f"{self._what} did not answer before; nothing more is tried there in this attempt")
        call = _Call(act)
        threading.Thread(target=call.run, name="relume-node", daemon=True).start()
        if not call.over.wait(limit_s):
            self.given_up = True
            raise Unanswered(f"{self._what} did not answer for {limit_s:.0f} s")
        return call.result()


class _Call(Generic[T]):
    def __init__(self, act: Callable[[], T]) -> None:
        self.over = threading.Event()
        self._act = act
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._returned.append(self._act())
        except BaseException as error:
            self._raised = error
        self.over.set()

    def result(self) -> T:
        if self._raised is not None:
            raise self._raised
        return self._returned[0]
