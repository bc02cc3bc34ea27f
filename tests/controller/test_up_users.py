"""Started by root: the web is another user, who reads no key of the workers and whom no third one can read."""

import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.environment import ROOT
from deploy.demo import site_folder
from tests.controller.up_process import Up, until
from tests.database_lane import LANE, fresh_database

pytestmark = pytest.mark.db
WEB, WORKER, STRANGER = "nobody", "daemon", "www-data"


def as_user(user: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, user=user, group=user if user != "nobody" else "nogroup", extra_groups=[], cwd="/",
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """In a folder of its own, because pytest closes the parent of its temporary folders to other users."""
    assert os.geteuid() == 0, "this lane needs root: the rights of two users are tested, not assumed"
    with tempfile.TemporaryDirectory(prefix="relume-users-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "home").mkdir()
        environment = {"RELUME_WEB_USER": WEB, "RELUME_WORKER_USER": WORKER}
        running = Up(folder, fresh_database(folder / "home"), environment)
        if as_user(WEB, sys.executable, "-c", "import django").returncode or not _readable(ROOT / "manage.py"):
            site = site_folder.make(folder / "site", Path(sys.prefix))
            running.python, running.code = site.python, site.code
            running.environment |= site.environment
        running.start()
        try:
            yield running
        finally:
            running.stop()


def _readable(path: Path) -> bool:
    return as_user(WEB, "test", "-r", str(path)).returncode == 0


def test_who_runs_as_whom(up: Up) -> None:
    names = {name: pwd.getpwuid(p.uid).pw_name for name, p in up.children().items()}
    assert names.pop("web") == WEB
    assert set(names.values()) == {WORKER} and len(names) == 4
    assert "WARNING" not in up.log


def test_both_users_write_the_same_database_and_the_sweep_runs(up: Up) -> None:
    began = time.time()
    until("a sweep", lambda: up.viewed_since(began))
    manage = [str(up.python), str(up.code / "manage.py")]
    for user, name in ((WEB, "ada"), (WORKER, "eve")):
        done = subprocess.run(
            [*manage, "create_user", name], env=up.full_environment(), cwd=up.code, user=user,
            group="nogroup" if user == "nobody" else user, extra_groups=[65534], capture_output=True, text=True,
            timeout=60, check=False, umask=0o007,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert up.health() is not None


def test_a_stranger_reads_nothing(up: Up) -> None:
    for path in (up.home, *up.home.rglob("*")):
        assert path.stat().st_mode & 0o007 == 0, path
    assert as_user(STRANGER, "ls", str(up.home)).returncode != 0
    assert as_user(STRANGER, "cat", str(up.home / "relume.sqlite3")).returncode != 0


def test_the_key_is_the_web_users_alone(up: Up) -> None:
    key = str(up.home / "secret_key")
    assert as_user(WEB, "cat", key).returncode == 0
    assert as_user(WORKER, "cat", key).returncode != 0
    assert as_user(STRANGER, "cat", key).returncode != 0


def test_the_web_user_reaches_the_broker_to_wake_a_sweep(up: Up) -> None:
    script = "import redis,sys; print(redis.Redis(unix_socket_path=sys.argv[1]).ping())"
    socket = str(up.home / "run" / "valkey.sock")
    assert as_user(WEB, str(up.python), "-c", script, socket).stdout.strip() == "True"
    assert as_user(STRANGER, str(up.python), "-c", script, socket).returncode != 0


def test_it_was_tested_on_both_kinds(up: Up) -> None:
    assert up.database.startswith(LANE)


def test_a_home_that_the_workers_cannot_reach_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    environment = {"RELUME_WEB_USER": WEB, "RELUME_WORKER_USER": WORKER, "RELUME_HOME": str(closed / "home")}
    refused = Up(tmp_path, f"sqlite:///{closed / 'home' / 'relume.sqlite3'}", environment)
    assert refused.run_to_end() == 1
    assert "cannot reach" in refused.log and "is closed to it" in refused.log
