"""The batch script's text, wherever sbatch takes it from: a file, standard input, `--wrap`."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.cli.sbatch_options import CommandLine

MARK_BYTES = 2
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Script:
    """`stdin`: what sbatch must get as standard input, because it was read here. `word`: as the user named it."""

    text: bytes = b""
    stdin: bytes | None = None
    word: str | None = None


def read_script(line: CommandLine, environ: Mapping[str, str]) -> Script:
    """A script that cannot be read is sbatch's to complain about: its text is empty here."""
    wrapped = line.last("wrap")
    if wrapped is not None:
        # sbatch makes its script of it without reading directives there; ours may stand before the first command.
        return Script(f"#!/bin/sh\n{wrapped.value or ''}\n".encode(errors="surrogateescape"))
    if line.script_at is None:
        text = _read_all(0)
        return Script(text or b"", text)
    word = line.argv[line.script_at]
    folder = line.last("chdir", "workdir")
    path = find_script(word, environ.get("PATH", ""), Path((folder.value if folder else None) or "."))
    try:
        text = path.read_bytes()
    except (OSError, ValueError):
        return Script(word=word)
    if (descriptor := _descriptor(word)) is not None:
        put_back(descriptor, text)
    return Script(text, word=word)


def find_script(word: str, search: str, folder: Path = Path()) -> Path:
    """sbatch's own search (tried): a path as it is; else in the folder that the job will work in, then along PATH; what
    is found nowhere is taken from the current folder."""
    if word.startswith((".", "/")):
        return Path(word)
    if (folder / word).is_file() and os.access(folder / word, os.R_OK):
        return folder / word
    return Path(shutil.which(word, mode=os.R_OK, path=search) or word)


def is_script(word: str) -> bool:
    """Is there a file that begins as every batch script must?"""
    with suppress(OSError, ValueError), find_script(word, os.environ.get("PATH", "")).open("rb") as file:
        return file.read(MARK_BYTES) == b"#!"
    return False


def _read_all(descriptor: int) -> bytes | None:
    """None if there is nothing that could be read: sbatch finds the same and says so."""
    chunks = []
    try:
        while chunk := os.read(descriptor, _CHUNK):
            chunks.append(chunk)
    except OSError:
        return b"".join(chunks) or None
    return b"".join(chunks)


def _descriptor(word: str) -> int | None:
    """`sbatch <(make_script)`: the number in `/dev/fd/63`; None for an ordinary path."""
    if word == "/dev/stdin":
        return 0
    for prefix in _DESCRIPTORS:
        number = word.removeprefix(prefix)
        if number != word and number.isascii() and number.isdigit() and len(number) < 8:
            return int(number)
    return None


def put_back(descriptor: int, text: bytes) -> None:
    """A pipe can be read once, so sbatch finds a copy under the same number."""
    copy = memory_file("script", text)
    os.dup2(copy, descriptor)
    os.close(copy)


def memory_file(name: str, text: bytes) -> int:
    """A descriptor to read `text` from, closed on exec unless it is made inheritable."""
    descriptor = os.memfd_create(name)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(text)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
