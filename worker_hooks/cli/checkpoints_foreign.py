"""Checkpoints that others wrote: what kind, which step, what is wrong with their files, what a full resume would lack.

Only what can be told without unpickling: names, lengths, JSON, the outlines of pickles. A pointer file and a file's
time are hints and never decide; a mark such as `_COMMITTED` does where the writer of that folder sets one.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from worker_hooks.cli.checkpoints_files import SUFFIXES, look_at_file, step_in_name
from worker_hooks.cli.checkpoints_folders import Foreign, contents_of_file, look_at_folder, made
from worker_hooks.protocol.folder_state import said

POINTERS = (
    "latest",
    "LATEST",
    "latest.txt",
    "latest_checkpoint",
    "latest_checkpointed_iteration.txt",
    "last_checkpoint",
)


def look_at(path: Path) -> Foreign | None:
    """None for what is no checkpoint that is known here. Never raises for what it finds."""
    try:
        return look_at_folder(path) if path.is_dir() else _file(path)
    except OSError as error:
        return made(path, "unreadable", problems=(said(error),))


def look_beside(paths: Sequence[Path]) -> list[Foreign]:
    """Those among `paths` that are checkpoints, judged together, the highest usable step first."""
    found = [item for path in paths if (item := look_at(path)) is not None]
    if any(item.mark for item in found):
        found = [replace(item, mark=bool(item.mark)) for item in found]
    return sorted(found, key=lambda item: (not item.usable, -1 if item.step is None else -item.step, item.path.name))


def choose(found: Sequence[Foreign]) -> tuple[Foreign | None, str]:
    """Which one to resume from, and why: the highest step of those that are whole. Pointers and times are hints."""
    usable = [item for item in found if item.usable and item.step is not None]
    if not usable:
        return None, "no whole one tells its step"
    best = max(usable, key=lambda item: item.step or 0)
    return best, "the highest step of those that are whole" + (" and marked as committed" if best.mark else "")


def alarms(found: Sequence[Foreign], pointers: dict[str, str], chosen: Foreign | None) -> list[str]:
    """What a person should know about the set as a whole."""
    said_so = []
    for name, text in pointers.items():
        if chosen is not None and not _agrees(text, chosen):
            said_so.append(f"{name} says {text[:80]!r}, the newest usable one is {chosen.path.name}: a stale pointer")
    dated = sorted((item for item in found if item.usable and item.step is not None), key=lambda item: item.modified_at)
    for earlier, later in pairwise(dated):
        assert earlier.step is not None and later.step is not None
        if later.step < earlier.step and later.modified_at > earlier.modified_at:
            said_so.append(
                f"{later.path.name} (step {later.step}) was written after {earlier.path.name} (step {earlier.step}): "
                "a run was restarted from scratch or from an older state in this folder"
            )
    return said_so


def _agrees(text: str, chosen: Foreign) -> bool:
    """By name, by step, or as a path from the folder that the pointer lies in."""
    if text in (chosen.path.name, chosen.path.stem) or (text.isdecimal() and int(text) == chosen.step):
        return True
    return bool(text) and os.path.normpath(chosen.path.parent / text) == str(chosen.path)


def pointers_in(folder: Path) -> dict[str, str]:
    """Pointer files and what they say; names of links say where they lead."""
    found = {}
    for name in POINTERS:
        path = folder / name
        try:
            if path.is_symlink():
                found[name] = path.readlink().name
            elif path.is_file():
                with path.open("rb") as file:
                    found[name] = file.read(200).decode("utf-8", "replace").strip()
        except OSError as error:
            found[name] = f"unreadable: {said(error)}"
    return found


def _file(path: Path) -> Foreign | None:
    if path.suffix not in SUFFIXES:
        return None
    facts = look_at_file(path)
    step, source = (facts.step, "its content") if facts.step is not None else (step_in_name(path.name), "its name")
    return made(
        path,
        facts.kind,
        step=step,
        step_from=source if step is not None else None,
        held=contents_of_file(facts),
        problems=(facts.problem,) if facts.problem else (),
        notes=(facts.why,) if facts.why else (),
    )
