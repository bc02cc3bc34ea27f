"""What a directory given to `relume checkpoints` is: a checkpoint root, a run, one checkpoint, or somebody else's."""

from dataclasses import dataclass, replace
from pathlib import Path

from worker_hooks.cli import checkpoints_foreign as foreign
from worker_hooks.cli.checkpoints_folders import Foreign, look_at_folder
from worker_hooks.protocol.folder_state import said
from worker_hooks.protocol.manifest import parse_folder
from worker_hooks.protocol.survey import Run, is_run, survey
from worker_hooks.protocol.tiers import LOCAL, run_of

_OF_A_ROOT = ("jobs",)


class UnreadableDirectory(Exception):
    """There is nothing that could be looked at; the text says why."""


@dataclass(frozen=True)
class Place:
    """Runs of ours, what others wrote, and names that are neither."""

    directory: Path
    runs: tuple[Run, ...]
    foreign: tuple[Foreign, ...]
    pointers: dict[str, str]
    others: tuple[str, ...]


def look(directory: Path) -> Place:
    """Raises UnreadableDirectory."""
    directory = directory.absolute()
    if directory.name == LOCAL and is_run(directory.parent):
        directory = directory.parent  # an index is read with the run that it is of
    try:
        if directory.is_file():
            found = foreign.look_at(directory)
            return Place(directory, (), (found,) if found else (), {}, () if found else (directory.name,))
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise UnreadableDirectory(f"{directory}: {error.strerror}") from None
    if parse_folder(directory.name):
        return Place(directory, (_one(directory),), (), {}, ())
    if is_run(directory):
        run = survey(directory)
        return _with_foreign(directory, (run,), run.others)
    runs = tuple(survey(directory / name) for name in names if is_run(directory / name))
    ours = {run.folder.name for run in runs}
    return _with_foreign(directory, runs, [name for name in names if name not in ours and name not in _OF_A_ROOT])


def _one(folder: Path) -> Run:
    """The run around one checkpoint, without the others."""
    run = survey(run_of(folder))
    shared, local = ([item for item in found if item.folder == folder] for found in (run.checkpoints, run.local))
    return replace(run, checkpoints=tuple(shared), local=tuple(local), others=())


def _with_foreign(directory: Path, runs: tuple[Run, ...], names: tuple[str, ...] | list[str]) -> Place:
    found = _foreign(directory, names)
    taken = {item.path.name for item in found}
    pointers = foreign.pointers_in(directory) if found and not runs else {}
    inside = any(item.path == directory for item in found)
    others = () if inside else tuple(name for name in names if name not in taken and name not in pointers)
    return Place(directory, runs, tuple(found), pointers, others)


def _foreign(directory: Path, names: tuple[str, ...] | list[str]) -> list[Foreign]:
    """A directory that is one checkpoint itself may hold further ones in folders; its files are parts of it."""
    paths = [directory / name for name in names]
    try:
        own = look_at_folder(directory)
    except OSError as error:
        raise UnreadableDirectory(said(error)) from None
    if own is not None and (own.kind != "folder of shards" or own.mark):
        return [own, *foreign.look_beside([path for path in paths if path.is_dir()])]
    beside = foreign.look_beside(paths)
    if own is not None and not any(item.contents for item in beside if item.path.is_file()):
        return [own, *(item for item in beside if item.path.is_dir())]
    return beside
