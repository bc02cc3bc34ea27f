"""What a newcomer's loop lacks, told once in rank 0's log: nothing of it is an error for certain, all of it was one for
somebody.
"""

import sys

_TRACK = (
    "nothing is tracked, so nothing is saved and nothing comes back: "
    "run.track(model=…, optimizer=…, loader=…) before run.restore()"
)
_STEP = (
    "a whole epoch of batches went by without run.step(), so nothing is saved: call it once after each optimizer update"
)
_EPOCHS = (
    "a loader is read again and nobody counts the epochs: a resume begins to count anew, and a sampler keeps its "
    "order; loop over run.epochs(n), or end at total_steps"
)


class Hints:
    """`speaks`: whether this rank's log is the one."""

    def __init__(self, *, speaks: bool, total_steps: int | None) -> None:
        self._speaks = speaks
        self._total_steps = total_steps
        self._told: set[str] = set()
        self._counted = False
        self._read: set[tuple[int, int]] = set()
        self._at = 0

    def epochs(self) -> None:
        """The loop asks for them."""
        self._counted = True

    def opened(self, loader: object, epoch: int, completed: int) -> None:
        place = (id(loader), epoch)
        if place in self._read and not self._counted and self._total_steps is None:
            self._say(_EPOCHS)
        self._read.add(place)
        self._at = completed

    def over(self, completed: int) -> None:
        """All batches of a tracked loader were given to the loop."""
        if completed == self._at:
            self._say(_STEP)

    def untracked(self) -> None:
        """An update of a run that knows of no object."""
        self._say(_TRACK)

    def _say(self, text: str) -> None:
        if self._speaks and text not in self._told:
            self._told.add(text)
            print(f"relume: note: {text}", file=sys.stderr, flush=True)
