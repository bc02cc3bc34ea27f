"""Opening files whose names anybody may have taken: a folder of checkpoints is often open to a whole group.

Under a name that a reader trusts there may stand a pipe, at which an ordinary open waits for ever, a device that never
ends, a link to itself, or a file of any length. None of that is a file that was written here.
"""

import errno
import os
import stat
from pathlib import Path

# Rank files, indexes and manifests are far smaller, for any job that there is; a longer file was written by nobody.
SMALL = 1 << 30


class NotRegular(FileNotFoundError):
    """There is something of that name, and it is no file. For a checkpoint it is as good as missing."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.ENOENT, what, str(path))


def open_regular(path: Path) -> int:
    """A descriptor to read from, at once. Raises OSError; NotRegular for what is no file, IsADirectoryError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # links in a circle; a socket
            raise NotRegular(path, "not a file") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegular(path, "not a file")


def read_small(path: Path, most: int = SMALL) -> bytes:
    """The whole file. Raises OSError as `open_regular` does, and ValueError for one longer than `most`."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{size} bytes, more than any that was written")
        try:
            return file.read()
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
