"""Which checkpoints a resume may take, and what became of the others."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.protocol import generations
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, Manifest, RankFile, parse_folder
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import read_small
from worker_hooks.protocol.tiers import TIERS, Tier, shelf
from worker_hooks.training.resuming.share_reader import SharesReader
from worker_hooks.training.resuming.soundness import GONE, Damaged, Problem, gone, inspect
from worker_hooks.training.saving.shares import own_key
from worker_hooks.training.tiers.sources import Sources

FAILED_VERIFICATION = "failed verification"


@dataclass(frozen=True)
class Source:
    """A checkpoint whose manifest, rank files and indexes match their digests. `own` is this rank's file, `first` rank
    0's; `exact` is False for a rank that is new."""

    sources: Sources
    manifest: Manifest
    own: RankFile
    first: RankFile
    exact: bool
    _readers: list[SharesReader]

    @property
    def folder(self) -> Path:
        """On shared storage: the checkpoint itself, or its index."""
        return self.sources.folder

    def reader(self) -> SharesReader:
        """Of all its shares. Until `close`."""
        return self._readers[0]

    def keys(self, reader: SharesReader) -> dict[str, str]:
        """Under which key each tensor that concerns this rank is stored, by its name in the tracked objects."""
        prefix = own_key(self.own.rank, "")
        mine = [key for key in reader.sizes() if not key.startswith("rank-") or key.startswith(prefix)]
        return {key.removeprefix(prefix): key for key in mine}

    def close(self) -> None:
        """Forget the indexes of all ranks, which nobody needs after the verification."""
        self._readers.clear()


def manifest_of(folder: Path) -> Manifest:
    """Raises Damaged, OSError."""
    try:
        return generations.read_manifest(folder)
    except MessageError as error:
        raise Damaged([Problem(None, f"{MANIFEST}: {error}")]) from None
    except GONE as error:
        raise Damaged([gone(None, folder, error)]) from None


def look_into(sources: Sources, manifest: Manifest, rank: int) -> Source:
    """What the checkpoint says of itself, compared. This rank will read every byte of the shares it answers for, so
    that each byte of each share is read and compared by somebody. Raises Damaged, OSError."""
    answers = sources.answers(rank, range(manifest.world_size))
    own, shares = rank if rank < manifest.world_size else 0, []
    files: dict[int, RankFile] = {}
    for ref in manifest.ranks:
        file, share = inspect(sources.share(ref.rank), ref, sizes=ref.rank in answers)
        shares.append(share)
        if ref.rank in (own, 0):
            files[ref.rank] = file
    return Source(sources, manifest, files[own], files[0], own == rank, [SharesReader(shares, answers)])


def newest(run: Path, without: Collection[str] = ()) -> tuple[str, list[Tier]] | None:
    """The newest one that counts, and on which tiers. Raises OSError, also for a generation file that is broken:
    nothing is known then."""
    try:
        counted = {tier: generations.accepted_folders(run, tier) for tier in TIERS}
    except MessageError as error:
        raise OSError(f"{run / generations.GENERATIONS}: {error}") from None
    names = {name for found in counted.values() for name in found}.difference(without)
    name = max(names, key=lambda name: parse_folder(name) or (0, 0), default=None)
    return (name, [tier for tier in TIERS if name in counted[tier]]) if name is not None else None


def may_walk_back(run: Path, folder: str) -> bool:
    """Whether a checkpoint whose resume failed is worth setting aside: there is one before it, and none was set aside
    for that since it was saved. Otherwise one defect would use up every checkpoint, attempt by attempt."""
    place = parse_folder(folder)
    try:
        others = [name for tier in TIERS for name in generations.accepted_folders(run, tier) if name != folder]
        failed = [_failed_in(note) for tier in TIERS for note in shelf(run, tier).glob(f"step-*/{QUARANTINE}")]
    except (OSError, MessageError):
        return False
    return bool(others) and place is not None and all(generation < place[1] for generation in failed)


def _failed_in(note: Path) -> int:
    """The generation that set a folder aside for a failed verification; 0 for another reason."""
    try:
        said = json.loads(read_small(note))
        return int(said["generation"]) if said["reason"].startswith(FAILED_VERIFICATION) else 0
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def pointer_problem(run: Path, chosen: str) -> str | None:
    """What `latest` says, where that is another folder than the one chosen: it is a hint, and followed by nobody."""
    try:
        said = read_small(run / "latest").decode(errors="replace").strip()
    except (OSError, ValueError):
        return None
    if said == chosen:
        return None
    state = "stale" if parse_folder(said) and (run / said).is_dir() else "dangling"
    return f"latest is a {state} pointer: it names {said[:80]!r}, the newest that verifies is {chosen}"


def broken_before(run: Path, generation: int) -> str | None:
    """What was wrong with the generation file that this generation superseded: what it accepted was worked out anew."""
    try:
        return generations.read_generation(run, generation).problem
    except (OSError, MessageError):
        return None


def bad_checkpoints(run: Path) -> list[str]:
    """Once committed, then found bad: folder and reason, newest first."""
    found, folders = [], [folder for tier in TIERS for folder in shelf(run, tier).glob("step-*")]
    for folder in sorted(folders, key=lambda path: parse_folder(path.name) or (0, 0), reverse=True):
        if (folder / MANIFEST).exists() and (folder / QUARANTINE).exists():
            found.append(f"{folder.name}: {_reason(folder / QUARANTINE)}")
    return found


def _reason(note: Path) -> str:
    try:
        return str(json.loads(read_small(note))["reason"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return "quarantined"
