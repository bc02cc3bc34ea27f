"""Who is reading a checkpoint: a file in `<run>/readers` per reader, so that retention leaves that folder alone.

A lock of the kernel would be simpler, but NFS without its lock daemon keeps locks to one node; a file shows everywhere.
A lease of a reader that died ends after LEASE_S, at once where its process can be seen to be gone.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

READERS = "readers"
LEASE_S = 2 * 3600.0
_LEASE = re.compile(r"(step-\d{8,}\.g\d+)\.(\d+)\.[0-9a-f]{8}\.(.+)")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Hold a lease on a checkpoint folder; look only afterwards whether its manifest is still there.

    Where nothing can be written (another user's folder, a read-only mount) there is no lease, and reading goes on.
    """
    name = f"{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.{socket.gethostname()}"
    lease = folder.parent / READERS / name
    with suppress(OSError):
        lease.parent.mkdir(exist_ok=True)
        lease.touch()
    try:
        yield
    finally:
        with suppress(OSError):
            lease.unlink()


def being_read(run: Path) -> set[str]:
    """Names of the folders with a lease that has not ended."""
    try:
        entries = list((run / READERS).iterdir())
    except FileNotFoundError:
        return set()
    return {match[1] for entry in entries if (match := _LEASE.fullmatch(entry.name)) and _holds(entry, match)}


def _holds(lease: Path, match: re.Match[str]) -> bool:
    try:
        fresh = time.time() - lease.stat().st_mtime < LEASE_S
    except FileNotFoundError:
        return False
    return fresh and not (match[3] == socket.gethostname() and _gone(int(match[2])))


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
