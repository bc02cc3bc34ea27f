"""Small files of the kernel, read below a root that tests choose: bounded, and "not there" is an answer."""

from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 8192
MAX_ENTRIES = 256


def text(path: Path) -> str | None:
    """None for what is not there, not for us, or refused by its driver (a dead device answers EIO or EINVAL)."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    content = text(path)
    try:
        return None if content is None else int(content, 0)
    except ValueError:
        return None


def folders(path: Path) -> Iterator[Path]:
    """The entries of a folder in order, none where it is not there."""
    try:
        entries = sorted(path.iterdir())
    except OSError:
        return
    yield from entries[:MAX_ENTRIES]
