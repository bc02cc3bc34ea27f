"""A whole run of messages over real HTTP while the web is killed, or the database is away: all of it once."""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from tests.controller.up_process import Up, until
from tests.database_lane import LANE, fresh_database
from tests.postgres import PrivatePostgres
from worker_hooks.protocol.identity import token_digest

pytestmark = pytest.mark.db
RECORDS = 60


def manage(up: Up, *arguments: str) -> str:
    argv = [str(up.python), str(up.code / "manage.py"), *arguments]
    done = subprocess.run(
        argv, cwd=up.code, env=up.full_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call(up: Up, path: str, token: str, body: Any = None) -> tuple[int, Any]:
    """(status, JSON); (0, None) when there was no answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(up.url + path, data, headers), timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def registered(up: Up) -> str:
    """Register the run over HTTP; the API token of its owner."""
    manage(up, "create_user", "ada")
    token = manage(up, "create_token", "ada")
    told = {"protocol": 1, "run_id": b.RUN_ID, "token_sha256": token_digest(b.TOKEN), "user": "ada", "cluster": None}
    told |= {"slurm_job_id": "7", "submitted_at": b.T0, "name": "mosaic"}
    until("registered", lambda: call(up, "/api/v1/register", token, told)[0] == 200)
    return token


def speak(up: Up, trouble: dict[int, Any], refused: dict[int, Any] | None = None) -> list[int]:
    """Send RECORDS records as an agent does, each until it is acked. `trouble`: what strikes after so many acks;
    `refused`: what happens after so many 503. Returns the statuses seen."""
    acked, statuses, end = 0, [], time.monotonic() + 90
    while acked < RECORDS:
        assert time.monotonic() < end, f"{acked} records acked; statuses {statuses}"
        if acked in trouble:
            trouble.pop(acked)()
        records = [b.losses(seq, [seq]) for seq in range(acked + 1, min(acked + 4, RECORDS + 1))]
        status, answer = call(up, "/api/v1/ingest", b.TOKEN, b.message(*records, sent_at=time.time()))
        statuses.append(status)
        if status == 200:
            assert answer["acked"] in range(acked, acked + 4)
            acked = answer["acked"]
        else:
            assert status in (0, 503) and "acked" not in (answer or {}), (status, answer)
            (refused or {}).pop(statuses.count(503), lambda: None)()
            time.sleep(0.05)
    return statuses


def kept(up: Up) -> list[int]:
    code = "from controller.models import MetricChunk as M; print(sorted(M.objects.values_list('seq', flat=True)))"
    found: list[int] = json.loads(manage(up, "shell", "--no-imports", "-v0", "-c", code))
    return found


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    (tmp_path / "home").mkdir()
    running = Up(tmp_path, fresh_database(tmp_path / "home")).start()
    try:
        yield running
    finally:
        running.stop()


def test_the_web_is_killed_in_the_middle_of_a_run(up: Up) -> None:
    token = registered(up)

    def strike() -> None:
        os.kill(up.children()["web"].pid, signal.SIGKILL)

    speak(up, {9: strike, 33: strike})
    assert kept(up) == list(range(1, RECORDS + 1))
    status, job = call(up, f"/api/v1/jobs/{b.RUN_ID}", token)
    assert (status, job["step"], [a["generation"] for a in job["attempts"]]) == (200, RECORDS, [1])


if LANE == "postgresql":

    def test_the_database_goes_away_in_the_middle_of_a_run(tmp_path: Path) -> None:
        server = PrivatePostgres(Path(tempfile.mkdtemp(prefix="relume-pg-")))
        server.start()
        up = Up(tmp_path, server.create_database("relume"))
        try:
            up.start()
            registered(up)
            statuses = speak(up, {9: server.pause}, refused={3: server.serve})
            assert 503 in statuses
            assert kept(up) == list(range(1, RECORDS + 1))
            began = time.time()
            until("a sweep after the outage", lambda: up.viewed_since(began))
        finally:
            up.stop()
            server.stop()
