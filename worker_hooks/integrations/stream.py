"""A loader as a framework's own loop may iterate it: the batches come through the run."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from worker_hooks import Run
from worker_hooks.training.errors import CheckpointError


class Stream:
    """Stands where the framework keeps `loader`, and has all that `loader` has.

    Each time the next batch is asked for, everything of the update before is over, whatever the framework does in it:
    so that is where a checkpoint is taken, and where a run that is over ends the iteration. `epoch` is the framework's
    count, set before each `iter()`; `stop` tells
    the framework that the run is over. After a resume nothing is read and no random number restored before the first
    batch is asked for; else `iter()` makes the loader's iterator, as without Relume.
    """

    def __init__(self, run: Run, loader: Any, stop: Callable[[], None]) -> None:
        self.epoch = 0
        self._stop = stop
        self._run = run
        self._loader = loader
        self._epochs = run.epochs(sys.maxsize)
        self._entered: int | None = None
        self._resumed = run.completed > 0
        self._batches: Iterator[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.close()
        if not self._resumed:
            self._open()
        return self._deliver()

    def close(self) -> None:
        """The epoch is left: its iterator goes, and the loader's workers with it."""
        close = getattr(self._batches, "close", None)
        self._batches = None
        if close is not None:
            close()

    def complete(self) -> None:
        """The checkpoint lies at the end of an epoch: verify there, before the framework goes on to the next."""
        self._enter(self.epoch)
        if self._resumed:
            self._run.batches(self._loader)
        self._resumed = False

    def _open(self) -> None:
        self._enter(self.epoch)
        self._batches = self._run.batches(self._loader)
        self._resumed = False

    def _enter(self, epoch: int) -> None:
        """Tell the run, which knows better where a resumed one stands. Raises CheckpointError if they disagree."""
        while self._entered != epoch:
            if self._resumed and self._entered is not None:
                self._run.batches(self._loader)  # the epoch that was over when it was saved
                self._resumed = False
            entered = next(self._epochs, None)
            if entered is None:
                return
            self._entered = entered
            if entered > epoch:
                raise CheckpointError(f"training goes on in epoch {epoch}, but the run stands in epoch {entered}")

    def _deliver(self) -> Iterator[Any]:
        if self._batches is None:
            self._open()
        assert self._batches is not None
        batches = self._batches
        while True:
            self._run.boundary()
            if self._run.over:
                self._stop()
                return
            batch = next(batches, self)
            if batch is self:
                return
            yield batch
