"""Removing a checkpoint folder so that no reader and no crash ever meets half of it under its own name."""

import secrets
import shutil
from pathlib import Path

from worker_hooks.protocol.durable import aside, sync_folder
from worker_hooks.protocol.leases import being_read
from worker_hooks.protocol.manifest import MANIFEST

TRASH = ".trash-"


def remove(folder: Path) -> bool:
    """The manifest first, then the whole folder under another name, then its bytes. False if somebody reads it.

    A reader takes its lease and then looks for the manifest, so whoever took one meanwhile is seen here, or sees that
    the folder is gone. Read the token right before (`generations.check_token`).
    """
    if folder.name in being_read(folder.parent):
        return False
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
    sync_folder(folder.parent)
    shutil.rmtree(trash, ignore_errors=True)
    return True


def trash_of(run: Path) -> list[Path]:
    """What a killed removal left half removed."""
    return sorted(run.glob(f"{TRASH}*"))
