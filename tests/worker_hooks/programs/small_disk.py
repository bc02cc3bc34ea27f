"""Trains with its node-local folder on a real file system of 4 MiB, in a mount namespace of its own: argv is the folder
of the run and the folder to mount at. A file takes the room away between two steps; the run's folder is printed.
"""

import ctypes
import os
import sys
from pathlib import Path

import torch

from worker_hooks import Run

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def own_mounts() -> None:
    """As root, or as the root of a user namespace."""
    system = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if system.unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if system.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mount --make-rprivate /")


def small_disk(at: Path) -> None:
    system = ctypes.CDLL(None, use_errno=True)
    if system.mount(b"tmpfs", str(at).encode(), b"tmpfs", 0, b"size=4m"):
        raise OSError(ctypes.get_errno(), "mount", str(at))


def main(root: Path, at: Path) -> None:
    own_mounts()
    small_disk(at)
    ballast = at / "somebody else's"
    options = {"checkpoint_every": 4, "local": at, "local_every": 1, "keep_local": 1, "asynchronous": False}
    with Run(model=torch.nn.Linear(600, 600), root=root, **options) as run:
        for step in range(1, 9):
            if step == 3:
                ballast.write_bytes(bytes(2 << 20))
            if step == 6:
                ballast.unlink()
            run.step(loss=1.0)
        print(run.folder.name, sorted(path.name for path in (at / run.folder.name).iterdir()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
