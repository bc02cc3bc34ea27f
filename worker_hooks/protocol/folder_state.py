"""One checkpoint folder as it lies there: its state, and what it lacks, by name. Read-only; the bytes stay unread."""

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from worker_hooks.protocol import generations
from worker_hooks.protocol.manifest import (
    MANIFEST,
    QUARANTINE,
    VERIFIED,
    Generation,
    RankFile,
    accepts,
    parse_folder,
    rank_file_name,
)
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import read_small
from worker_hooks.protocol.tiers import SHARED, tier_of
from worker_hooks.protocol.trash import TRASH

State = Literal["committed", "damaged", "complete", "incomplete", "quarantined", "superseded", "trash", "unreadable"]
_NAMED = 4
# A rank file alone says how many ranks there were, and each of them is looked for.
MOST_RANKS = 1 << 18


@dataclass(frozen=True)
class Checkpoint:
    """One folder. `bytes` are those of its files, a file with several names counted in each of them; `created_at` is
    the commit, else the folder's own time. `missing` says what it lacks, file by file. Of a node-local one the bytes
    are on `nodes`, and nobody can tell from here whether they still are; peers hold `copies` shares of it."""

    folder: Path
    step: int
    generation: int
    state: State
    reason: str | None
    counts: bool
    has_manifest: bool
    missing: tuple[str, ...]
    verified_at: float | None
    created_at: float | None
    world_size: int | None
    bytes: int
    being_read: bool
    problems: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    copies: int = 0

    @property
    def name(self) -> str:
        return self.folder.name


def look(folder: Path, place: tuple[int, int], newest: Generation | None, reading: bool) -> Checkpoint:
    """The folder of `place` (step, generation), judged by the `newest` generation. Never raises for what it finds."""
    try:
        return _read(folder, place, newest, reading)
    except OSError as error:
        return Checkpoint(
            folder, *place, "unreadable", said(error), False, False, (), None, None, None, 0, reading, (said(error),)
        )


def _read(folder: Path, place: tuple[int, int], newest: Generation | None, reading: bool) -> Checkpoint:
    problems: list[str] = []
    names = {entry.name for entry in os.scandir(folder)}
    has_manifest = MANIFEST in names
    created_at, world_size = folder.stat().st_mtime, None
    missing: list[str] = []
    if has_manifest:
        try:
            manifest = generations.read_manifest(folder)
            created_at, world_size = manifest.created_at, manifest.world_size
        except MessageError as error:
            missing.append(f"{MANIFEST}: {error}")
    elif any(name.startswith(f".{MANIFEST}.") for name in names):
        problems.append("its manifest was set aside by a removal that did not end")
    ranks, gaps = _rank_files(folder, world_size or _planned(folder))
    missing += gaps
    quarantined = _quarantine(folder, problems) if QUARANTINE in names else None
    token = newest is not None and accepts(newest, folder.name, tier_of(folder))
    verified_at = _verified(folder, problems) if VERIFIED in names and has_manifest else None
    state, reason = _state(newest, place[1], token, has_manifest, missing, quarantined, ranks)
    return Checkpoint(
        folder,
        *place,
        state,
        reason,
        token and has_manifest and quarantined is None,
        has_manifest,
        tuple(missing),
        verified_at,
        created_at,
        world_size or _planned(folder),
        bytes_of(folder) if tier_of(folder) == SHARED else sum(entry.bytes for rank in ranks for entry in rank.files),
        reading,
        tuple(problems),
        *_on_nodes(ranks),
    )


def _on_nodes(ranks: list[RankFile]) -> tuple[tuple[str, ...], int]:
    """The nodes in the order of their ranks, and how many shares lie on a second one too."""
    nodes = dict.fromkeys(str(rank.saving["node"])[:255] for rank in ranks if rank.saving.get("node"))
    return tuple(nodes), sum(bool(rank.saving.get("copy")) for rank in ranks)


def _state(
    newest: Generation | None,
    generation: int,
    token: bool,
    has_manifest: bool,
    missing: list[str],
    quarantined: str | None,
    ranks: list[RankFile],
) -> tuple[State, str | None]:
    lacks = "; ".join([*missing[:_NAMED], *([f"{len(missing) - _NAMED} more"] if len(missing) > _NAMED else [])])
    if quarantined is not None:
        return "quarantined", quarantined
    if not token or (not has_manifest and newest is not None and generation < newest.generation):
        return "superseded", _why_not(newest, generation, token, lacks)
    if has_manifest:
        return ("damaged", lacks) if missing else ("committed", None)
    if missing:
        return "incomplete", lacks
    bad = [rank.rank for rank in ranks if not rank.fingerprint.get("finite", True)]
    if bad:
        return "incomplete", f"never to be committed: parameters are not finite on ranks {bad}"
    return "complete", "not committed"


def _why_not(newest: Generation | None, generation: int, accepted: bool, lacks: str) -> str:
    also = f" ({lacks})" if lacks else ""
    if newest is None:
        return f"no generation file says that it counts{also}"
    if generation > newest.generation:
        return f"generation {generation} has no file{also}"
    if accepted:
        return f"its manifest is gone{also}"
    return f"generation {newest.generation} did not accept it{also}"


def _planned(folder: Path) -> int | None:
    """How many ranks were to write here, as far as any rank file tells."""
    for name in sorted(entry.name for entry in os.scandir(folder)):
        if name.startswith("rank-") and name.endswith(".json") and name.count(".") == 1:
            try:
                size = int(generations.read_rank_file(folder, int(name[5:-5])).run["world_size"])
            except (OSError, ValueError, KeyError, TypeError, OverflowError):
                continue
            if 0 < size <= MOST_RANKS:
                return size
    return None


def _rank_files(folder: Path, world_size: int | None) -> tuple[list[RankFile], list[str]]:
    """The rank files that can be read, and everything that is missing, short or broken. What lies on the nodes cannot
    be looked at."""
    if world_size is None:
        return [], ["no rank file"]
    ranks, missing = [], []
    for rank in range(world_size):
        try:
            ranks.append(generations.read_rank_file(folder, rank))
        except FileNotFoundError:
            missing.append(f"{rank_file_name(rank)} is missing")
        except (OSError, ValueError, OverflowError) as error:
            missing.append(f"{rank_file_name(rank)}: {said(error)}")
    for one in ranks if tier_of(folder) == SHARED else ():
        missing += [gap for entry in one.files if (gap := size_gap(folder, entry.name, entry.bytes))]
    return ranks, missing


def size_gap(folder: Path, name: str, wanted: int) -> str | None:
    """What the length of a file says against it, or None."""
    try:
        size = (folder / name).stat().st_size
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name}: {said(error)}"
    return None if size == wanted else f"{name} has {size} bytes, {wanted} were written"


def _quarantine(folder: Path, problems: list[str]) -> str:
    note = _json(folder / QUARANTINE, problems)
    return str(note.get("reason", "no reason was written"))[:500]


def _verified(folder: Path, problems: list[str]) -> float | None:
    """When it was read back. A note about another manifest than the one here says nothing."""
    note = _json(folder / VERIFIED, problems)
    at, about = note.get("at"), note.get("manifest")
    if about is not None and about != "sha256:" + sha256(read_small(folder / MANIFEST)).hexdigest():
        problems.append(f"{VERIFIED} speaks of another manifest")
        return None
    return float(at) if isinstance(at, int | float) and not isinstance(at, bool) else None


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: {said(error)}")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path.name}: not an object")
        return {}
    return found


def look_at_trash(folder: Path) -> Checkpoint:
    """What a removal that was cut off left."""
    parts = folder.name.removeprefix(TRASH).rpartition(".")[0]
    step, generation = parse_folder(parts) or (0, 0)
    return Checkpoint(
        folder,
        step,
        generation,
        "trash",
        "half removed",
        counts=False,
        has_manifest=False,
        missing=(),
        verified_at=None,
        created_at=None,
        world_size=None,
        bytes=bytes_of(folder),
        being_read=False,
    )


def bytes_of(folder: Path) -> int:
    """Bytes of all files below; what cannot be read counts nothing."""
    total = 0
    for top, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(top, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def said(error: BaseException) -> str:
    """What went wrong, with the name of the file where there is one."""
    if isinstance(error, OSError) and error.filename:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return str(error) or type(error).__name__
