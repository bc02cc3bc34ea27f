"""A disk of its own for the ranks of a test: a real file system in a mount namespace that ends with its fork server, so
nothing is left to unmount whatever fails. Mounting needs root, as `make test` has."""

import errno
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.worker_hooks.conftest import ForkServer

SIZE = 16 << 20
BTRFS_SIZE = 128 << 20  # the smallest that it takes
# Formats, mounts, then becomes the fork server. $1 is the image, $2 the mount point.
MOUNTS = {
    "ext4": 'mkfs.ext4 -q -F -m 0 "$1" && mount -o loop "$1" "$2"',
    "quota": 'mkfs.btrfs -q -f "$1" && mount -o loop "$1" "$2" && btrfs -q quota enable "$2" && '
    f'btrfs -q subvolume create "$2/user" && btrfs qgroup limit {SIZE} "$2/user"',
    "limited": f'mount -t tmpfs -o size={SIZE} none "$2"',
}


class Disk:
    """`folder`: for the ranks. `seen`: the same from outside the namespace."""

    def __init__(self, place: Path, kind: str) -> None:
        self._image, self._mounted = place / "image", place / "disk"
        self._mounted.mkdir()
        with self._image.open("wb") as file:
            file.truncate(BTRFS_SIZE if kind == "quota" else SIZE)
        script = f'{{ {MOUNTS[kind]}; }} >&2 && shift 2 && exec "$@"'
        prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        self.server = ForkServer([*prefix, str(self._image), str(self._mounted)])
        self.folder = self._mounted / "user" if kind == "quota" else self._mounted

    @property
    def seen(self) -> Path:
        return Path(f"/proc/{self.server.pid}/root{self.folder}")

    def fill(self) -> str:
        """Somebody takes all the room that is left; what the system said then. `make_room` gives it back."""
        try:
            with (self.seen / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        except OSError as error:
            assert error.errno in (errno.ENOSPC, errno.EDQUOT), error
            return error.strerror

    def make_room(self) -> None:
        (self.seen / "ballast").unlink()

    def fail(self) -> None:
        """As ext4 after an error of its device: read-only at once, also for files that are open."""
        self._inside("mount", "-o", "remount,abort", str(self._mounted))

    def repair(self) -> None:
        self._inside("umount", str(self._mounted))
        checked = subprocess.run(["e2fsck", "-f", "-p", str(self._image)], capture_output=True, timeout=60, check=False)
        assert checked.returncode in (0, 1), checked.stdout
        self._inside("mount", "-o", "loop", str(self._image), str(self._mounted))

    def remount(self, mode: str) -> None:
        """`ro` or `rw`."""
        self._inside("mount", "-o", f"remount,{mode}", str(self._mounted))

    def _inside(self, *argv: str) -> None:
        subprocess.run(["nsenter", f"--mount=/proc/{self.server.pid}/ns/mnt", *argv], check=True, timeout=60)


@contextmanager
def disk(place: Path, kind: str) -> Iterator[Disk]:
    made = Disk(place, kind)
    try:
        yield made
    finally:
        made.server.close()


def limited_kinds() -> Sequence[str]:
    """A full disk, and a user's limit: btrfs' quota where its tools are there, or a file system of limited size. (ext4
    has quota only in kernels built with QFMT_V2, and root is free of it.)"""
    return ("ext4", "quota" if shutil.which("mkfs.btrfs") else "limited")
