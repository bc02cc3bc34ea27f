"""Which checkpoints of a run may go: one rule for training's own retention and for `relume checkpoints prune`.

Pure: what is known of each folder comes in, a verdict with its reason for each comes out. What is not known for sure
keeps a folder. Whoever removes reads the token once more before each removal and asks again who is reading.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

VERIFIED_KEPT = 2


@dataclass(frozen=True)
class Folder:
    """`counts`: committed, not quarantined, and of the newest generation or accepted by it. `damaged`: known to lack
    bytes."""

    name: str
    step: int
    generation: int
    counts: bool
    verified: bool = False
    quarantined: bool = False
    damaged: bool = False
    being_read: bool = False


@dataclass(frozen=True)
class Verdict:
    name: str
    goes: bool
    reason: str


def decide(
    folders: Sequence[Folder],
    *,
    newest_generation: int | None,
    keep: int,
    protected: Collection[str | None] = (),
    quarantined: bool = False,
) -> list[Verdict]:
    """One verdict for each folder, in the order given.

    Kept: the newest `keep` that count and are not known to be damaged (at least one), the two newest verified ones,
    `protected` ones, those being read, what the newest generation may be writing, and (unless `quarantined`) what is
    quarantined. `newest_generation` None: nobody can tell what counts, so everything stays.
    """
    good = sorted((f for f in folders if f.counts and not f.damaged), key=_newness, reverse=True)
    newest = {folder.name for folder in good[: max(keep, 1)]}
    verified = {folder.name for folder in [f for f in good if f.verified][:VERIFIED_KEPT]}

    def reason_to_keep(folder: Folder) -> str | None:
        if newest_generation is None:
            return "no generation says what counts"
        if folder.being_read:
            return "being read"
        if folder.quarantined:
            return None if quarantined else "quarantined, for inspection"
        if folder.damaged and folder.counts:
            return "damaged, for inspection"
        if folder.name in newest:
            return f"one of the newest {max(keep, 1)}"
        if folder.name in verified:
            return f"one of the {VERIFIED_KEPT} newest verified"
        if folder.name in protected:
            return "an attempt starts from it"
        if not folder.counts and folder.generation >= newest_generation:
            return "the newest generation may be writing it"
        return None

    found = []
    for folder in folders:
        kept = reason_to_keep(folder)
        found.append(Verdict(folder.name, kept is None, kept or _why_it_goes(folder, keep)))
    return found


def _newness(folder: Folder) -> tuple[int, int]:
    return folder.step, folder.generation


def _why_it_goes(folder: Folder, keep: int) -> str:
    if folder.quarantined:
        return "quarantined"
    if folder.counts:
        return f"older than the newest {max(keep, 1)}"
    return "does not count: left by a superseded generation"
