"""Is a checkpoint what was written? Every file of it read and compared; what is wrong is said with the file's name.

A file that is short, gone or other than its digest is a *problem* of that checkpoint. Storage that does not answer
(EIO, ESTALE, no permission) is an `OSError` and says nothing about any checkpoint.
"""

import json
from pathlib import Path

from worker_hooks.protocol.generations import read_manifest, read_rank_file
from worker_hooks.protocol.manifest import MANIFEST, FileEntry, RankRef, rank_folder_name
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.files.digests import algorithm_of, file_digest
from worker_hooks.training.files.share_files import INDEX
from worker_hooks.training.resuming.share_index import chunks_of, misplaced

_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def problem(folder: Path, rank: int, world_size: int) -> str | None:
    """What is wrong with the part that rank `rank` of `world_size` looks through, or None. Raises OSError."""
    try:
        try:
            refs = read_manifest(folder).ranks
        except MessageError as error:
            return f"{MANIFEST}: {error}"
        return next(filter(None, (_share_problem(folder, ref) for ref in refs[rank::world_size])), None)
    except _GONE as error:
        return f"{_name(folder, error.filename)} is missing"


def _share_problem(folder: Path, ref: RankRef) -> str | None:
    if file_digest(folder / ref.file, algorithm_of(ref.digest)) != ref.digest:
        return f"{ref.file} does not match its digest"
    try:
        entries = read_rank_file(folder, ref.rank).files
    except MessageError as error:
        return f"{ref.file}: {error}"
    return next(filter(None, (_file_problem(folder, entry) for entry in entries)), None) or _index_problem(
        folder, ref.rank, entries
    )


def _file_problem(folder: Path, entry: FileEntry) -> str | None:
    path = folder / entry.name
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{entry.name} has {size} bytes, {entry.bytes} were written"
    if file_digest(path, algorithm_of(entry.digest)) != entry.digest:
        return f"{entry.name} does not match its digest"
    return None


def _index_problem(folder: Path, rank: int, entries: tuple[FileEntry, ...]) -> str | None:
    """An index may name nothing but files whose bytes were just compared."""
    place = f"{rank_folder_name(rank)}/"
    sizes = {entry.name.removeprefix(place): entry.bytes for entry in entries if entry.name.startswith(place)}
    if INDEX not in sizes:
        return f"{place}{INDEX} is not among the files of the rank"
    try:
        wrong = misplaced(chunks_of(json.loads((folder / place / INDEX).read_bytes()), rank), sizes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{place}{INDEX}: {error}"
    return f"{place}{INDEX}: {wrong}" if wrong else None


def _name(folder: Path, path: object) -> str:
    found = Path(str(path))
    return str(found.relative_to(folder)) if found.is_relative_to(folder) else found.name
