"""Which checkpoints of a run stay while it trains: the rule of `protocol.retention_rule`, carried out by rank 0.

Of the LOCAL tier this is the index; the nodes follow it (`tiers.retention`).

The token is read before each removal, and a folder stops counting before it shrinks.
"""

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from worker_hooks.protocol import generations, trash
from worker_hooks.protocol.leases import being_read
from worker_hooks.protocol.manifest import QUARANTINE, VERIFIED, parse_folder
from worker_hooks.protocol.retention_rule import Folder, decide
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier, run_of, shelf, tier_of


def prune(
    run: Path, generation: int, *, keep: int, protected: Collection[str | None], tier: Tier = SHARED
) -> list[str]:
    """Remove what the rule lets go. Raises NotNewest as soon as the token is somebody else's."""
    verdicts = decide(_folders(run, tier), newest_generation=generation, keep=keep, protected=protected)
    return _remove_all(run, generation, tier, [verdict.name for verdict in verdicts if verdict.goes])


def clear_abandoned(run: Path, generation: int, tier: Tier = SHARED) -> list[str]:
    """Remove what superseded generations left uncommitted. Done before the first save too: a checkpoint that filled
    the disk would otherwise fill it for every attempt after it. Raises NotNewest like `prune`."""
    folders = [folder for folder in _folders(run, tier) if not folder.counts]
    verdicts = decide(folders, newest_generation=generation, keep=1)
    return _remove_all(run, generation, tier, [verdict.name for verdict in verdicts if verdict.goes])


def clear_local(run: Path, generation: int, step: int) -> list[str]:
    """Remove from the index what lies on the nodes, up to a step that is saved for good. What is quarantined stays for
    inspection. Raises NotNewest like `prune`."""
    folders = generations.step_folders(shelf(run, LOCAL))
    names = [folder.name for folder in folders if not (folder / QUARANTINE).exists()]
    return _remove_all(run, generation, LOCAL, [name for name in names if (parse_folder(name) or (0, 0))[0] <= step])


def discard(folder: Path, generation: int) -> None:
    """Remove a folder of this generation that was never committed. Raises NotNewest like `prune`."""
    if folder.exists():
        _remove_all(run_of(folder), generation, tier_of(folder), [folder.name])


def empty_trash(shelf: Path) -> None:
    """What a killed `prune` left half removed."""
    for entry in trash.trash_of(shelf):
        shutil.rmtree(entry, ignore_errors=True)


def _remove_all(run: Path, generation: int, tier: Tier, names: Iterable[str]) -> list[str]:
    """One that cannot be removed keeps none of the others. Raises its error then, once they are gone."""
    removed, failed = [], None
    for name in names:
        generations.check_token(run, generation)
        try:
            if trash.remove(shelf(run, tier) / name):
                removed.append(name)
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return removed


def _folders(run: Path, tier: Tier) -> list[Folder]:
    """What the rule asks about each checkpoint folder. Bytes are not looked at: damage is the readers' to find."""
    place_of_tier = shelf(run, tier)
    counted, read = set(generations.accepted_folders(run, tier)), being_read(place_of_tier)
    return [
        Folder(
            entry.name,
            *place,
            counts=entry.name in counted,
            verified=(entry / VERIFIED).exists(),
            quarantined=(entry / QUARANTINE).exists(),
            being_read=entry.name in read,
        )
        for entry in sorted(generations.step_folders(place_of_tier))
        if (place := parse_folder(entry.name)) is not None
    ]
