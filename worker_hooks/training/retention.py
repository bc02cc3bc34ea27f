"""Which checkpoints are kept. The token is read before each removal, and a folder stops counting before it shrinks."""

import shutil
from collections.abc import Collection
from pathlib import Path

from worker_hooks.protocol import generations
from worker_hooks.protocol.durable import aside, sync_folder
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, parse_folder

TRASH = ".trash-"


def prune(run: Path, generation: int, *, keep: int, protected: Collection[str | None]) -> list[str]:
    """Remove all but the newest `keep` committed folders, and what superseded generations left uncommitted.

    Quarantined folders stay for inspection. Raises NotNewest as soon as the token is somebody else's.
    """
    counted = generations.accepted_folders(run)
    return _remove_all(run, generation, [name for name in counted[keep:] if name not in protected]) + clear_abandoned(
        run, generation
    )


def clear_abandoned(run: Path, generation: int) -> list[str]:
    """Remove what superseded generations left uncommitted. Done before the first save too: a checkpoint that filled
    the disk would otherwise fill it for every attempt after it. Raises NotNewest like `prune`."""
    counted = generations.accepted_folders(run)
    return _remove_all(run, generation, [name for name in _abandoned(run, generation) if name not in counted])


def _remove_all(run: Path, generation: int, names: list[str]) -> list[str]:
    for name in names:
        generations.check_token(run, generation)
        _remove(run / name)
    return names


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


def _remove(folder: Path) -> None:
    manifest = folder / MANIFEST
    if manifest.exists():
        manifest.rename(aside(manifest))
        sync_folder(folder)
    trash = folder.with_name(f"{TRASH}{folder.name}")
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
