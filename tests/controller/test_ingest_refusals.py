"""What a bad message does not do: nothing of it is kept or acked, and it is told where it is bad."""

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from controller.models import AgentReport, Attempt, MetricChunk
from tests import builders as b
from tests.controller.ingest_desk import CLOCK, NOTE, NOW, acked, post
from worker_hooks.protocol.messages import MAX_BODY_BYTES

pytestmark = pytest.mark.db


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's clock stands at NOW, and nobody is woken."""
    monkeypatch.setattr(CLOCK, lambda: NOW)
    monkeypatch.setattr(NOTE, lambda: None)


def test_tokens(make_job: Any) -> None:
    make_job()
    make_job(run_id="tj-000000000002", token="another")
    assert post(b.message(), token="").status_code == 401
    assert post(b.message(), token="wrong").status_code == 401
    assert post(b.message(), token="another").status_code == 403
    assert post(b.message(run_id="tj-00000000dead")).status_code == 403
    assert post(b.message(run_id="tj-00000000dead"), token="wrong").status_code == 401
    assert post(b.message(job={"user": "eve"})).status_code == 403
    assert not Attempt.objects.exists()


def test_an_empty_digest_is_no_open_door(make_job: Any) -> None:
    make_job(token_digest="")
    assert post(b.message(), token="x").status_code == 401


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", "body"),
        (b"[" * 100_000, "body"),
        (b.message() | {"protocol": 2}, "message.protocol"),
        (b.message() | {"generation": 0}, "message.generation"),
        (b.message() | {"generation": 1 << 40}, "message.generation"),
        (b.message() | {"sent_at": 1e18}, "message.sent_at"),
        (b.message(b.losses(1, [1]) | {"steps": "all"}), "records[0].steps"),
        (b.message(b.losses(1, [1]) | {"rank": 1 << 33}), "record 1.rank"),
        (b.message(b.losses(1, [1], at=-5.0)), "message.records[0].at"),
        (b.message(job={"nodes": "gpu[1-"}), "message.job.nodes"),
        (b.message(agent={"probe_port": 0}), "message.agent.probe_port"),
    ],
)
def test_a_malformed_message_is_told_where_and_changes_nothing(make_job: Any, body: Any, where: str) -> None:
    make_job()
    response = post(body)
    assert response.status_code == 400, response.content
    assert response.json()["where"].endswith(where) and response.json()["what"]
    assert not Attempt.objects.exists()


def test_texts_that_no_database_takes_are_made_harmless(make_job: Any) -> None:
    make_job()
    acked(b.message(b.event(1, "rank_log", 0, tail="a\x00b \\u0000 \\\\"), boot_id="b\x00"))
    assert Attempt.objects.get().log_tail["0"] == "a\ufffdb \\u0000 \\\\"
    assert AgentReport.objects.get().boot_id == "b\ufffd"


def test_a_body_that_is_too_long_is_not_read(make_job: Any) -> None:
    make_job()
    assert post(b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    assert post(b"").status_code == 400
    assert Client().get("/api/v1/ingest").status_code == 405


def test_when_the_database_does_not_commit_nothing_is_acked(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job()

    def locked(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr("controller.ingest.store.save_report", locked)
        response = post(b.message(b.losses(1, [1])))
    assert (response.status_code, "acked" in response.json()) == (503, False)
    assert int(response.headers["Retry-After"]) > 0
    assert not MetricChunk.objects.exists() and not Attempt.objects.exists()
    assert acked(b.message(b.losses(1, [1]))) == 1


@pytest.mark.parametrize("name", ["", "n" * 201, "../admin", "a b", "gpu[1-2]", "-\u00e9"])
def test_a_node_that_is_no_node_name_is_refused(make_job: Any, name: str) -> None:
    """It becomes a part of addresses on the job's page, which broke on such a name."""
    make_job()
    response = post(b.message(b.event(1, "agent_started")) | {"node": name})
    assert (response.status_code, response.json()["where"]) == (400, "message.node")
    assert not AgentReport.objects.exists()
