"""Which checkpoints are kept. The token is read before each removal, and a folder stops counting before it shrinks."""

import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from worker_hooks.protocol import generations
from worker_hooks.protocol.durable import aside, sync_folder
from worker_hooks.protocol.leases import being_read
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, VERIFIED, parse_folder

TRASH = ".trash-"
VERIFIED_KEPT = 2


def prune(run: Path, generation: int, *, keep: int, protected: Collection[str | None]) -> list[str]:
    """Remove all but the newest `keep` committed folders and the two newest verified ones, and what superseded
    generations left uncommitted. What somebody reads stays, and what is quarantined, for inspection.

    Raises NotNewest as soon as the token is somebody else's.
    """
    counted = generations.accepted_folders(run)
    verified = [name for name in counted if (run / name / VERIFIED).exists()]
    kept = {*counted[:keep], *verified[:VERIFIED_KEPT], *protected}
    return _remove_all(run, generation, [name for name in counted if name not in kept]) + clear_abandoned(
        run, generation
    )


def clear_abandoned(run: Path, generation: int) -> list[str]:
    """Remove what superseded generations left uncommitted. Done before the first save too: a checkpoint that filled
    the disk would otherwise fill it for every attempt after it. Raises NotNewest like `prune`."""
    counted = generations.accepted_folders(run)
    return _remove_all(run, generation, [name for name in _abandoned(run, generation) if name not in counted])


def discard(folder: Path, generation: int) -> None:
    """Remove a folder of this generation that was never committed. Raises NotNewest like `prune`."""
    if folder.exists():
        _remove_all(folder.parent, generation, [folder.name])


def _remove_all(run: Path, generation: int, names: list[str]) -> list[str]:
    removed = []
    for name in names:
        generations.check_token(run, generation)
        if name not in being_read(run) and _remove(run / name):
            removed.append(name)
    return removed


def empty_trash(run: Path) -> None:
    """What a killed `prune` left half removed."""
    for entry in run.glob(f"{TRASH}*"):
        shutil.rmtree(entry, ignore_errors=True)


def _abandoned(run: Path, generation: int) -> list[str]:
    found = []
    for entry in run.iterdir():
        place = parse_folder(entry.name)
        if place is not None and place[1] < generation and not (entry / QUARANTINE).exists():
            found.append(entry.name)
    return found


def _remove(folder: Path) -> bool:
    """The manifest first. A reader takes its lease and then looks for the manifest, so whoever took one meanwhile is
    seen here, or sees that the folder is gone."""
    manifest = folder / MANIFEST
    if manifest.exists():
        hidden = aside(manifest)
        manifest.rename(hidden)
        sync_folder(folder)
        if folder.name in being_read(folder.parent):
            hidden.rename(manifest)
            return False
    trash = folder.with_name(f"{TRASH}{folder.name}.{secrets.token_hex(4)}")
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
    return True
