"""What a checkpoint says of itself: manifest, rank files and indexes, each read once, compared and then believed.

A file that is short, gone or other than its digest is *damage* of that checkpoint, said with the file's name. Storage
that does not answer (EIO, ESTALE, no permission) is an `OSError` and says nothing about any checkpoint. The bytes of
the tensors themselves are compared while they are loaded (`share_reader`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from worker_hooks.digests import algorithm_of
from worker_hooks.protocol.manifest import (
    FileEntry,
    RankFile,
    RankRef,
    decode_rank_file,
    parse_folder,
    rank_folder_name,
)
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import NotRegular, read_small
from worker_hooks.training.files.digests import bytes_digest
from worker_hooks.training.files.reading import begin
from worker_hooks.training.files.share_files import INDEX
from worker_hooks.training.resuming.share_index import Chunk, chunks_of, misplaced

Known = TypeVar("Known")
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Problem(NamedTuple):
    """What is wrong with the share of rank `share` of the save; None: with the checkpoint as a whole."""

    share: int | None
    said: str


class Damaged(Exception):
    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.said for problem in problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Share:
    """What one rank of the save wrote, and in which folder it lies for the rank that reads it."""

    rank: int
    folder: Path
    files: tuple[FileEntry, ...]
    chunks: tuple[Chunk, ...]

    def path(self, name: str) -> Path:
        return self.folder / name

    def entry(self, chunk: Chunk) -> FileEntry:
        """The file that the chunk lies in."""
        name = f"{rank_folder_name(self.rank)}/{chunk.file}"
        return next(entry for entry in self.files if entry.name == name)


def inspect(folder: Path, ref: RankRef, *, sizes: bool) -> tuple[RankFile, Share]:
    """A share's rank file and index; `sizes`: the length of every file is looked at too. Raises Damaged, OSError."""
    try:
        data = _compared(folder, ref.file, ref.digest)
        file = _believed(ref.file, lambda: _rank_file(folder, ref.rank, data))
        for entry in file.files if sizes else ():
            found = begin(folder / entry.name)
            if found != entry.bytes:
                raise _Wrong(f"{entry.name} has {found} bytes, {entry.bytes} were written")
        return file, Share(ref.rank, folder, file.files, _chunks(folder, file))
    except GONE as error:
        raise Damaged([gone(ref.rank, folder, error)]) from None
    except _Wrong as error:
        raise Damaged([Problem(ref.rank, str(error))]) from None


def gone(share: int | None, folder: Path, error: OSError) -> Problem:
    """A file that is not there, or is none."""
    found = Path(str(error.filename))
    name = found.relative_to(folder) if found.is_relative_to(folder) else found.name
    return Problem(share, f"{name} is {error.strerror if isinstance(error, NotRegular) else 'missing'}")


class _Wrong(Exception):
    pass


def _compared(folder: Path, name: str, digest: str) -> bytes:
    try:
        data = read_small(folder / name)
    except ValueError as error:
        raise _Wrong(f"{name}: {error}") from None
    if bytes_digest(data, algorithm_of(digest)) != digest:
        raise _Wrong(f"{name} does not match its digest")
    return data


def _believed(name: str, read: Callable[[], Known]) -> Known:
    """Bytes as they were written may still be none of ours."""
    try:
        return read()
    except (MessageError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Wrong(f"{name}: {error}") from None


def _rank_file(folder: Path, rank: int, data: bytes) -> RankFile:
    file = decode_rank_file(json.loads(data))
    if file.rank != rank or parse_folder(folder.name) != (file.step, file.generation):
        raise ValueError(f"speaks about rank {file.rank} of step {file.step}, not this place")
    return file


def _chunks(folder: Path, file: RankFile) -> tuple[Chunk, ...]:
    """An index may name nothing but files of its rank whose digests are known."""
    place = f"{rank_folder_name(file.rank)}/"
    known = {entry.name.removeprefix(place): entry for entry in file.files if entry.name.startswith(place)}
    if INDEX not in known:
        raise _Wrong(f"{place}{INDEX} is not among the files of the rank")
    data: Any = _compared(folder, place + INDEX, known[INDEX].digest)
    chunks = _believed(place + INDEX, lambda: chunks_of(json.loads(data), file.rank))
    wrong = misplaced(chunks, {name: entry.bytes for name, entry in known.items()})
    if wrong:
        raise _Wrong(f"{place}{INDEX}: {wrong}")
    return tuple(chunks)
