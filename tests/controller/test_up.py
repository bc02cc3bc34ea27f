"""`manage.py up` with real processes: ready, killed one by one, interrupted, killed itself, started twice."""

import contextlib
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode

import pytest

from controller.up.plan import WEB_PROCESSES, WEB_THREADS
from tests.controller.up_process import NAMES, Up, processes, until
from tests.database_lane import LANE, fresh_database

pytestmark = pytest.mark.db


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "home").mkdir()
    running = Up(folder, fresh_database(folder / "home")).start()
    try:
        yield running
    finally:
        running.stop()


def test_the_page_answers_and_the_first_login_that_was_printed_works(up: Up) -> None:
    assert up.health() is not None
    found = re.search(r"first login: user (\S+), password (\S+)", up.log)
    assert found is not None
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar := CookieJar()))
    with opener.open(f"{up.url}/admin/login/", timeout=30) as page:
        assert page.status == 200
    token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": found[1], "password": found[2], "csrfmiddlewaretoken": token, "next": "/admin/"}
    request = urllib.request.Request(f"{up.url}/admin/login/", urlencode(form).encode(), {"Referer": up.url})
    with opener.open(request, timeout=30) as page:
        assert "sessionid" in {cookie.name for cookie in jar}


def test_the_sweep_runs(up: Up) -> None:
    began = time.time()
    until("a sweep", lambda: up.viewed_since(began))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_killed_child_starts_again_and_leaves_nobody_behind(up: Up, name: str) -> None:
    until("all children", lambda: set(up.children()) == set(NAMES))
    victim = up.children()[name]
    brood = {p.pid for p in processes().values() if p.ppid == victim.pid}
    os.kill(victim.pid, signal.SIGKILL)
    began = time.time()
    until(f"{name} again", lambda: up.children().get(name, victim).pid != victim.pid)
    until("its own children gone", lambda: not brood & set(processes()))
    until("health", lambda: up.health() is not None)
    until(f"a sweep after {name} was killed\n{up.log}", lambda: up.viewed_since(began))


def test_hosts_that_died_in_the_middle_of_a_request_do_not_hold_the_web(up: Up) -> None:
    """More of them than the web has threads: each sent half a message and then nothing, not even an end."""
    host, port = up.url.removeprefix("http://").split(":")
    half = (
        b"POST /api/v1/ingest HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nContent-Length: 5000\r\n\r\n{"
    )
    with contextlib.ExitStack() as dead:
        for number in range(3 * WEB_PROCESSES * WEB_THREADS):
            connection = dead.enter_context(socket.create_connection((host, int(port)), 10))
            connection.sendall(half if number % 2 else half[:60])
        # Several in a row, because it is chance which of the web's processes takes one.
        until("every call answered", lambda: all(up.health() is not None for _ in range(20)))


def test_a_second_up_on_the_same_home_is_refused(up: Up, tmp_path: Path) -> None:
    second = Up(tmp_path, up.database, {"RELUME_HOME": str(up.home)})
    assert second.run_to_end() == 1
    assert up.process is not None
    assert f"another `up` (pid {up.process.pid}) is running" in second.log
    assert up.health() is not None


def test_a_taken_port_is_told(up: Up, tmp_path: Path) -> None:
    taken = up.url.removeprefix("http://")
    second = Up(tmp_path, up.database, arguments=("--listen", taken))
    assert second.run_to_end() == 1
    assert f"cannot listen on {taken}: Address already in use" in second.log


def test_the_home_is_closed(up: Up) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (up.home, *up.home.iterdir())}
    assert modes.pop("home") == 0o700 and modes.pop("run") == 0o700
    assert set(modes.values()) == {0o600}
    assert (("relume.sqlite3" in modes) == (LANE == "sqlite")) and {"secret_key", "up.lock"} <= set(modes)


@pytest.mark.parametrize("how", ["interrupt", "terminate", "kill"])
def test_nothing_outlives_up(tmp_path: Path, how: str) -> None:
    (tmp_path / "home").mkdir()
    up = Up(tmp_path, fresh_database(tmp_path / "home")).start()
    family = up.family()
    assert len(family) > len(NAMES)
    if how == "interrupt":
        assert up.stop() == 0
    else:
        up.send(signal.SIGTERM if how == "terminate" else signal.SIGKILL)
        assert up.process is not None
        assert up.process.wait(30) == (0 if how == "terminate" else -signal.SIGKILL)
    limit_s = 40.0 if how == "kill" else 0.5  # orphans end by themselves; otherwise everything is gone at once
    until(f"gone: {[processes().get(pid) for pid in family]}", lambda: not family & set(processes()), limit_s)
    assert not list((tmp_path / "home").rglob("*.sock")) or how == "kill"
    if how == "kill":  # its lock and its socket are still there
        again = Up(tmp_path, up.database).start()
        assert again.log.count("ready at") == 2 and again.log.count("first login") == 1
        assert again.stop() == 0
