"""A private PostgreSQL cluster for tests: own folder, unix socket only, trust, no fsync.

`python -m tests.postgres` starts one, prints its `DATABASE_URL` and keeps it until Ctrl-C.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_LIMIT_S = 60.0
USER = "relume"
PR_SET_PDEATHSIG = 1


class PostgresMissing(RuntimeError):
    """PostgreSQL cannot be run here; the lane that needs it has failed."""


def binaries() -> Path:
    """The newest installed server's folder (Debian keeps them out of PATH)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise PostgresMissing("no PostgreSQL server here: apt-get install postgresql (the lane does not skip)")
    return Path(on_path).resolve().parent


@dataclass
class PrivatePostgres:
    """The server refuses to run as root: then it runs as `postgres`, or as `nobody`."""

    folder: Path
    _server: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}&port=5432"

    def start(self) -> None:
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        account = self._account()
        if account:
            shutil.chown(self.folder, account["user"], account["group"])
        data = self.folder / "data"
        made = self._run("initdb", "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale")
        if made.returncode:
            raise PostgresMissing(f"initdb failed: {made.stderr.strip()[-500:]}")
        self.serve()

    def serve(self) -> None:
        """From a thread that lives on: the server ends with the thread that started it."""
        account, data = self._account(), self.folder / "data"
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "shared_buffers": "64MB",
            "deadlock_timeout": "200ms",
        }
        argv = [str(binaries() / "postgres"), "-D", str(data)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("wb") as log:
            self._server = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
                **account,
            )
        self._wait()

    def _wait(self) -> None:
        assert self._server is not None
        end = time.monotonic() + START_LIMIT_S
        while self._run("pg_isready", "-q", "-h", str(self.folder), "-U", USER).returncode:
            if self._server.poll() is not None or time.monotonic() > end:
                raise PostgresMissing(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)

    def create_database(self, name: str) -> str:
        """A fresh empty database; its URL."""
        made = self._run("createdb", "-h", str(self.folder), "-U", USER, name)
        if made.returncode:
            raise RuntimeError(made.stderr)
        return self.url(name)

    def stop(self) -> None:
        self.pause()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pause(self) -> None:
        """Away, with what was committed; `serve` brings it back."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)  # fast shutdown: open sessions are cut
            try:
                self._server.wait(15)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(15)
            self._server = None

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(binaries() / program), *arguments]
        account = self._account()
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=self.folder, check=False, **account)

    @staticmethod
    def _account() -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        raise PostgresMissing("neither a user postgres nor nobody: PostgreSQL does not run as root")


def _die_with_parent() -> None:
    """Runs after the change of user, which would clear it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def main() -> int:
    server = PrivatePostgres(Path(tempfile.mkdtemp(prefix="relume-pg-")))
    server.start()
    try:
        print(server.create_database("relume"), flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
