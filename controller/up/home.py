"""What lies in RELUME_HOME, and who may read it.

One user: 0700. Two users: owned by the worker's user, open to the shared group (2770), because SQLite's journal files
are made by whoever writes first; nothing is open to anybody else.
"""

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from controller.up.accounts import Accounts, UpError

LOCK, KEY, DATABASE = "up.lock", "secret_key", "relume.sqlite3"
SOCKET_PATH_LIMIT = 100  # the kernel takes 107 bytes


@dataclass
class Home:
    folder: Path
    accounts: Accounts
    lock: int = -1

    @property
    def key_file(self) -> Path:
        return self.folder / KEY

    def prepare(self) -> None:
        """Make or take over the folder, and lock it. Raises UpError."""
        try:
            self._take_over()
            self._lock()
            self._own(self.folder, 0o2770 if self.accounts.shared_gid is not None else 0o700)
        except OSError as error:
            raise UpError(f"RELUME_HOME={self.folder}: {error.strerror}") from None

    def _take_over(self) -> None:
        """A folder that is somebody else's, like /tmp, is not taken over: its mode is about to be changed."""
        if not self.folder.exists():
            self.folder.mkdir(mode=0o700, parents=True)
        elif not self.folder.is_dir():
            raise UpError(f"RELUME_HOME={self.folder} is not a folder")
        else:
            names = {entry.name for entry in self.folder.iterdir()}
            if names and not names & {LOCK, DATABASE}:
                raise UpError(f"RELUME_HOME={self.folder} holds other things than Relume's; name an empty folder")

    def _lock(self) -> None:
        """Held as long as this process lives. A second `up` on the same home is refused."""
        self.lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self.lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise UpError(f"another `up` (pid {pid}) is running on {self.folder}; stop it first") from None
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()}\n".encode(), 0)

    def _own(self, path: Path, mode: int) -> None:
        shared = self.accounts.shared_gid
        if self.accounts.worker.switch or shared is not None:
            os.chown(path, self.accounts.worker.uid, self.accounts.worker.gid if shared is None else shared)
        path.chmod(mode)

    def make_key(self) -> None:
        """The sessions' secret key: 0600, and the web process's alone."""
        path = self.key_file
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(64) + "\n")
                file.flush()
                os.fsync(file.fileno())
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UpError(f"{path} is readable by others: make it 0600, or delete it (everybody then logs in again)")
        if self.accounts.web.switch:
            os.chown(path, self.accounts.web.uid, self.accounts.web.gid)

    def make_database_file(self, path: Path) -> None:
        """SQLite gives its journal the mode of its file; made by a first write it would be closed to the group."""
        if path.parent == self.folder:
            path.touch(mode=0o600)
            self._own(path, 0o660 if self.accounts.shared_gid is not None else 0o600)
            for name in (f"{path.name}-wal", f"{path.name}-shm"):
                if (self.folder / name).exists():
                    self._own(self.folder / name, path.stat().st_mode & 0o777)

    def socket_folder(self) -> Path:
        """Where the embedded broker's socket lies: closed to everybody but the two users."""
        folder = self.folder / "run"
        if len(os.fsencode(folder)) > SOCKET_PATH_LIMIT - len("/valkey.sock"):
            folder = Path(tempfile.mkdtemp(prefix="relume-run-"))
        folder.mkdir(mode=0o700, exist_ok=True)
        self._own(folder, 0o2750 if self.accounts.shared_gid is not None else 0o700)
        return folder
