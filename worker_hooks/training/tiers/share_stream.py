"""One rank's share over a link: what is sent, and how it lands so that half a share never passes for a whole one.

The files land in a folder of an unused name and are compared with the digests in the rank file; that folder then gets
its name, and the rank file is written last. A share without its rank file is nothing to anybody.
"""

import json
import mmap
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from worker_hooks.digests import Hasher, algorithm_of
from worker_hooks.protocol.durable import create_file, sync_folder
from worker_hooks.protocol.manifest import (
    FileEntry,
    RankFile,
    decode_rank_file,
    parse_folder,
    rank_file_name,
    rank_folder_name,
)
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.files.digests import new_hasher
from worker_hooks.training.files.share_files import BLOCK
from worker_hooks.training.files.writing import takes_direct, write_file
from worker_hooks.training.tiers.link import WINDOW, Link

# Of the files of a share, by their names in the rank file: where stretches begin, and how long they are.
Parts = Mapping[str, Sequence[tuple[int, int]]]


class ShareDamaged(Exception):
    """What arrived is not what was saved; the text names the file."""


def rank_file_digest(data: bytes) -> str:
    """As a manifest names it."""
    return "sha256:" + sha256(data).hexdigest()


def send_share(link: Link, folder: Path, data: bytes) -> None:
    """The share of `folder` that the rank file `data` describes: first the rank file, then each file's bytes.

    It ends early where the other side has something to say. Raises OSError, LinkError.
    """
    share = decode_rank_file(json.loads(data))
    link.tell({"rank_file": data.decode()})
    for entry in share.files:
        if not link.send_file(folder / entry.name, entry.bytes):
            return


def missing(folder: Path, files: Sequence[FileEntry]) -> str | None:
    """What of a share is not there, or short; None if it can be sent. Raises OSError."""
    for entry in files:
        try:
            size = (folder / entry.name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"{entry.name} is missing"
        if size != entry.bytes:
            return f"{entry.name} has {size} bytes, {entry.bytes} were written"
    return None


def receive_share(link: Link, folder: Path, rank: int, digest: str) -> None:
    """The share of rank `rank` into `folder`, durable and complete when this returns. `digest`: of its rank file.

    Raises ShareDamaged, OSError, LinkError; nothing that counts is there then.
    """
    data = str(link.hear()["rank_file"]).encode()
    if rank_file_digest(data) != digest:
        raise ShareDamaged(f"{rank_file_name(rank)} does not match its digest")
    share = _described(data, folder, rank)
    folder.mkdir(parents=True, exist_ok=True)
    landing = folder / f".{rank_folder_name(rank)}.{os.getpid()}.{secrets.token_hex(4)}"
    landing.mkdir()
    try:
        for entry in share.files:
            _receive_file(link, landing / PurePosixPath(entry.name).name, entry)
        sync_folder(landing)
        # What has the name already is not what is wanted: half a share, or a copy that nobody waited for.
        (folder / rank_file_name(rank)).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder / rank_folder_name(rank), ignore_errors=True)
        landing.rename(folder / rank_folder_name(rank))
    except BaseException:
        shutil.rmtree(landing, ignore_errors=True)
        raise
    sync_folder(folder)
    sync_folder(folder.parent)
    create_file(folder / rank_file_name(rank), data)


def send_parts(link: Link, folder: Path, parts: Parts) -> None:
    """Raises OSError, LinkError."""
    for name, stretches in parts.items():
        for start, size in stretches:
            link.send_file(folder / name, size, start)


def receive_parts(link: Link, folder: Path, parts: Parts, sizes: Mapping[str, int]) -> None:
    """Into files of their full length, with holes where nothing was asked for. Nothing is compared here, and nothing of
    it is durable: who reads a stretch has its digest. Raises OSError, LinkError."""
    buffer = memoryview(bytearray(WINDOW))
    for name, stretches in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb", buffering=0) as file:
            file.truncate(sizes[name])
            for start, size in stretches:
                for at in range(start, start + size, WINDOW):
                    piece = buffer[: min(WINDOW, start + size - at)]
                    link.receive_into(piece)
                    file.seek(at)
                    file.write(piece)


def _described(data: bytes, folder: Path, rank: int) -> RankFile:
    """Its digest was right, so these are the writer's words; but they decide where bytes go."""
    try:
        share = decode_rank_file(json.loads(data))
    except (ValueError, MessageError) as error:
        raise ShareDamaged(f"{rank_file_name(rank)}: {error}") from None
    if (share.rank, (share.step, share.generation)) != (rank, parse_folder(folder.name)):
        raise ShareDamaged(f"{rank_file_name(rank)} speaks about rank {share.rank} of step {share.step}")
    for entry in share.files:
        if PurePosixPath(entry.name).parent != PurePosixPath(rank_folder_name(rank)):
            raise ShareDamaged(f"{rank_file_name(rank)} names {entry.name[:80]!r}, which is not in the rank's folder")
    return share


def _receive_file(link: Link, path: Path, entry: FileEntry) -> None:
    watcher = _Digest(algorithm_of(entry.digest))
    buffer = memoryview(
        mmap.mmap(-1, min(WINDOW, max(_whole_blocks(entry.bytes), BLOCK)))
    )  # unmapped with its last view
    windows = _arriving(link, buffer, entry.bytes)
    write_file(path, windows, entry.bytes, watcher, direct=takes_direct(path.parent))
    if watcher.text != entry.digest:
        raise ShareDamaged(f"{entry.name} does not match its digest")


def _arriving(link: Link, buffer: memoryview, size: int) -> Iterator[memoryview]:
    """Whole blocks, in the same memory each time; what the last one has beyond `size` is cut off by the writer."""
    for start in range(0, size, len(buffer)):
        count = min(len(buffer), size - start)
        link.receive_into(buffer[:count])
        yield buffer[: _whole_blocks(count)]


def _whole_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


class _Digest:
    """A watcher of written bytes."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._hasher: Hasher = new_hasher(algorithm)

    def feed(self, data: Any) -> None:
        self._hasher.update(data)

    @property
    def text(self) -> str:
        return f"{self._algorithm}:{self._hasher.hexdigest()}"
