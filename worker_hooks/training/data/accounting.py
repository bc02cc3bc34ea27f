"""Do the batches that were consumed fit the updates that were done? R04: a place that counts from the last restart does
not.

Batches of one rank are counted over all epochs and attempts. What a batch holds and how many make an update may change
with the number of ranks or by the script, so the sum begins anew there, at the step where it changed.
"""

from dataclasses import asdict, dataclass
from typing import Any

Accounted = tuple[str, str, int, int] | tuple[str, str, int, int, str, str]


@dataclass(frozen=True)
class Since:
    """Where an update last became one of another size. `samples`: of the whole job, up to there."""

    step: int = 0
    batches: int = 0
    samples: int = 0


class Account:
    """`earlier`: batches of the epochs before this one; None where an older checkpoint did not say. `turns`: epochs and
    attempts entered since; an accumulation may be cut short at each."""

    def __init__(self) -> None:
        self.earlier: int | None = 0
        self.turns = 0
        self._since = Since()

    def turn(self, batches: int) -> None:
        """An epoch of which `batches` were consumed is left."""
        if batches:
            self.turns += 1
            self.earlier = None if self.earlier is None else self.earlier + batches

    def take_up(self, record: dict[str, Any] | None, epoch: int) -> None:
        """What `record` gave, at the start of another attempt."""
        if record is None:
            self.earlier = None if epoch else 0
        else:
            self.earlier, self.turns, self._since = record["earlier"], record["turns"], Since(**record["since"])
        self.turns += 1

    def record(self) -> dict[str, Any]:
        return {"earlier": self.earlier, "turns": self.turns, "since": asdict(self._since)}

    def as_it_was(self, record: dict[str, Any] | None) -> "Account":
        """What the checkpoint said of the updates up to it, which `begin_anew` leaves behind."""
        saved = Account()
        saved.take_up(record, 0)
        saved.earlier = self.earlier
        return saved

    def begin_anew(self, step: int, batches: int, together: int) -> None:
        """From `step` on an update is one of another size; until here a batch held `together` samples."""
        if self.earlier is not None:
            self._since = Since(step, self.earlier + batches, self._samples(batches, together))
            self.turns = 0

    def check(self, step: int, batches: int, *, together: int, accumulation: int, unit: str) -> Accounted | None:
        """(name, outcome, what the updates took, what the place says), and code and why where they differ."""
        if self.earlier is None:
            return None
        updates = step - self._since.step
        expected = self._since.samples + updates * accumulation * together
        actual = self._samples(batches, together)
        consumed = self.earlier + batches - self._since.batches
        # The end of an epoch may cut an accumulation short or leave it out: one update at each is no difference.
        if abs(consumed // accumulation - updates) <= (self.turns + 1 if accumulation > 1 else 0):
            return "consumed", "PASS", expected, actual
        batch, since = accumulation * together, self._since
        took = f"step {step} x global batch {batch}"
        if since.step:
            took = f"{since.samples} up to step {since.step}, then {updates} steps x global batch {batch}"
        why = f"{took} = {expected} {unit}, the position says {actual}"
        return "consumed", "DEGRADED", expected, actual, "CONSUMED_OFF", why

    def _samples(self, batches: int, together: int) -> int:
        assert self.earlier is not None
        return self._since.samples + (self.earlier + batches - self._since.batches) * together
