"""Writing files so that they survive a power cut, with the standard library alone.

A name is durable only after its *folder* was synced too; every function here does both.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _named(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system's errors name no file where it was only told a number."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def aside(path: Path) -> Path:
    """A name beside `path` that no other writer picks; readers skip names that begin with a dot."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with _named(path), os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` under `path`, atomically and durably; an older file of that name is replaced."""
    temporary = aside(path)
    try:
        _write_synced(temporary, data)
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Write `data` under `path` unless that name is taken: True if this call made it.

    A hard link decides, because it is atomic on NFS too. There a retransmitted link can answer EEXIST although it was
    ours: the link count of the file set aside tells.
    """
    temporary = aside(path)
    try:
        _write_synced(temporary, data)
        try:
            os.link(temporary, path)
            made = True
        except FileExistsError:
            made = temporary.stat().st_nlink == 2
    finally:
        with suppress(OSError):
            temporary.unlink()
    if made:
        sync_folder(path.parent)
    return made


def encode_json(value: Any) -> bytes:
    """Readable and stable JSON; non-finite numbers are refused (encode them as text first)."""
    return (json.dumps(value, allow_nan=False, indent=1, sort_keys=True) + "\n").encode()
