"""What became of the samples of each epoch, over all attempts: trained once, repeated, skipped, left out or padded.

It follows the run that is kept: steps that a dead attempt did beyond the checkpoint are in no parameters, so their
samples count when they are trained again. A position is the number of entries of the epoch's order that the whole job
has consumed (`unit` samples), or of batches of one rank where nothing better is known. Standard library only.
"""

from dataclasses import asdict, dataclass
from typing import Any

REPEATED, SKIPPED, LEFT_OUT, PADDED, DISCARDED, UNKNOWN = (
    "repeated",
    "skipped",
    "left_out",
    "padded",
    "discarded",
    "unknown",
)
KEPT = 64
_FAULTS = (REPEATED, SKIPPED, UNKNOWN)
_WORDS = {LEFT_OUT: "left out", PADDED: "padded", DISCARDED: "loaded ahead and thrown away"}


@dataclass(frozen=True)
class Entry:
    """`first` to `last` (exclusive) of the order of `epoch`.

    `repeated`: trained twice. `skipped`: never trained, because an attempt or an epoch started beyond them. `left_out`:
    the epoch ended before them (a remainder that the ranks could not share evenly, a batch that was not full, or a loop
    that stopped early). `padded`: repeats that a loader appends so that ranks have equal counts. `discarded`: loaded
    ahead by this rank's workers, within that stretch, and never trained, so loaded again. `unknown`: cannot be said,
    `why` tells.
    """

    kind: str
    epoch: int
    first: int
    last: int
    count: int
    why: str = ""

    def text(self, unit: str) -> str:
        if self.kind == UNKNOWN:
            return f"epoch {self.epoch}: {self.why}"
        what = f"{self.count} {unit} {_WORDS.get(self.kind, self.kind)}"
        return f"{what}: {self.first} to {self.last - 1} of epoch {self.epoch}"


@dataclass
class Span:
    """A stretch of the present epoch that one attempt's ranks trained."""

    first: int
    last: int
    ranks: int


class Ledger:
    """`begin` where an iteration starts, `advance` as it goes, `end` where the loader has no more."""

    def __init__(self, unit: str = "samples") -> None:
        self.unit = unit
        self.epoch: int | None = None
        self.spans: list[Span] = []
        self.entries: list[Entry] = []
        self.totals = dict.fromkeys((REPEATED, SKIPPED, LEFT_OUT, PADDED, DISCARDED, UNKNOWN), 0)
        self._ended = False

    @property
    def reached(self) -> int:
        """Where the present epoch stands."""
        return self.spans[-1].last if self.spans else 0

    def begin(self, epoch: int, at: int, *, ranks: int, size: int | None) -> list[Entry]:
        """An iteration of `epoch` starts at `at`; `size`: entries of a whole epoch. Returns what is wrong with that."""
        found: list[Entry] = []
        if epoch != self.epoch:
            self.end(size)
            self.epoch, self.spans, self._ended = epoch, [], False
        elif self._ended and at == self.reached:
            return []  # it was over when it was saved, and is over again
        if at > self.reached:
            found.append(self._note(SKIPPED, self.reached, at))
        elif at < self.reached:
            found.append(self._note(REPEATED, at, self.reached))
        if self.spans and self.spans[-1].first == self.spans[-1].last:
            self.spans.pop()  # an attempt that trained nothing
        self.spans = [*self.spans, Span(at, at, ranks)][-KEPT:]
        self._ended = False
        return found

    def advance(self, to: int) -> None:
        self.spans[-1].last = to

    def end(self, size: int | None) -> None:
        """The loader gives no more of this epoch, which has `size` entries if anybody knows. Once per epoch."""
        if self.epoch is None or self._ended:
            return
        self._ended = True
        if size is not None and self.reached < size:
            self._note(LEFT_OUT, self.reached, size)
        elif size is not None and self.reached > size:
            self._note(PADDED, size, self.reached)

    def began_at(self, first: int) -> Entry:
        """It turned out that the iteration which is ending began there and not at the epoch's beginning."""
        span = self.spans[-1]
        span.first, span.last = first, span.last + first
        return self._note(SKIPPED, 0, first)

    def close(self, size: int | None) -> None:
        """The next iteration is another epoch, also if it has the same number."""
        self.end(size)
        self.epoch, self.spans = None, []

    def discard(self, count: int, ranks: int) -> None:
        """`count` samples were loaded ahead on this rank, one of `ranks`, beyond the position and are loaded again."""
        if count:
            self._note(DISCARDED, self.reached, self.reached + count * ranks, count)

    def unknown(self, why: str) -> Entry:
        """Something that nobody can count happened at this position."""
        return self._note(UNKNOWN, self.reached, self.reached + 1, why=why)

    def _note(self, kind: str, first: int, last: int, count: int | None = None, why: str = "") -> Entry:
        entry = Entry(kind, self.epoch or 0, first, last, last - first if count is None else count, why)
        self.totals[kind] += entry.count
        self.entries = [*self.entries, entry][-KEPT:]
        return entry

    def text(self) -> str:
        """The totals of all attempts in words."""
        return ", ".join(f"{count} {kind}" for kind, count in self.totals.items()) + f" ({self.unit})"

    # --- as JSON ------------------------------------------------------------------------------------------------

    def record(self, reached: int | None = None) -> dict[str, Any]:
        """For the rank file (docs/formats.md section 6). `reached`: if the last span is to end before it does."""
        spans = [asdict(span) for span in self.spans]
        if spans and reached is not None:
            spans[-1]["last"] = reached
        return {
            "unit": self.unit,
            "epoch": self.epoch,
            "ended": self._ended,
            "spans": spans,
            "totals": dict(self.totals),
            "entries": [asdict(entry) for entry in self.entries],
        }

    @classmethod
    def read(cls, data: dict[str, Any]) -> "Ledger":
        """What `record` gave."""
        ledger = cls(data["unit"])
        ledger.epoch, ledger._ended = data["epoch"], data["ended"]
        ledger.spans = [Span(**span) for span in data["spans"]]
        ledger.entries = [Entry(**entry) for entry in data["entries"]]
        ledger.totals |= data["totals"]
        return ledger


def alarms(entries: list[Entry]) -> list[str]:
    """The names under which a start in the wrong place is known: STEP_REPEAT, SAMPLES_SKIPPED."""
    names = {REPEATED: "STEP_REPEAT", SKIPPED: "SAMPLES_SKIPPED"}
    return [names[entry.kind] for entry in entries if entry.kind in names]


def is_sound(entries: list[Entry]) -> bool:
    return not any(entry.kind in _FAULTS for entry in entries)
