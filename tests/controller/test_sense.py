"""Sensors' messages in: whose word they are, what is committed and acked, and what is not believed."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from controller.clock import aware
from controller.ingest import sign_rows
from controller.models import Attempt, Cluster, NodeSensor, Sign, TrainingJob
from tests import builders as b
from worker_hooks.protocol.answers import decode_answer
from worker_hooks.protocol.identity import token_digest

pytestmark = pytest.mark.db
NOW = b.T0 + 101.0


@pytest.fixture(autouse=True)
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The controller's clock stands at NOW; wakes are written down instead of sent."""
    made: list[str] = []
    for views in ("views", "sense_views"):
        monkeypatch.setattr(f"controller.ingest.{views}.clock.now", lambda: NOW)
    monkeypatch.setattr("controller.ingest.door.WAKER.leave_note", lambda: made.append("wake"))
    return made


def post(body: Any, token: str = b.SENSOR_TOKEN, path: str = "sense") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    raw = json.dumps(body).encode()
    return Client().post(f"/api/v1/{path}", raw, content_type="application/json", headers=headers)


def acked(body: dict[str, Any], **where: Any) -> int:
    response = post(body, **where)
    assert response.status_code == 200, response.content
    return decode_answer(response.json()).acked


def codes() -> list[str]:
    return list(Sign.objects.order_by("seq").values_list("code", flat=True))


def test_a_sign_becomes_a_row_on_the_controllers_clock(db: None, wakes: list[str]) -> None:
    b.sensor()
    attrs = {"number": 79, "pci": "0000:9b:00", "members": "1," * 500}
    body = b.sense(b.sign(1, attrs=attrs, count=3, last_at=b.T0 + 100), clock_offset_s=-20.0)
    assert acked(body) == 1 and wakes == ["wake"]
    sign, sensor = Sign.objects.get(), NodeSensor.objects.get()
    assert (sign.origin, sign.node, sign.code, sign.count) == ("sensor", "gpu1", "xid.79", 3)
    assert (sign.observed_at, sign.last_at, sign.received_at) == (aware(b.T0 + 79), aware(b.T0 + 80), aware(NOW))
    assert sign.attrs == attrs
    assert (sensor.received_at, sensor.readers, sensor.boot_id) == (aware(NOW), {"kernel": "ok"}, "b1")


def test_duplicates_gaps_and_overtaking(db: None) -> None:
    b.sensor()
    assert acked(b.sense(b.sign(1), b.sign(3, "xid.13"))) == 1
    assert acked(b.sense(b.sign(3, "xid.13"), b.sign(2, "xid.63"), b.sign(1))) == 3
    assert acked(b.sense(b.sign(1), sent_at=b.T0 + 50, readers={"kernel": "old"})) == 3
    assert codes() == ["xid.79", "xid.63", "xid.13"]
    assert NodeSensor.objects.get().readers == {"kernel": "ok"}


def test_a_lost_spool_counts_anew_and_the_old_one_is_not_counted_twice(db: None) -> None:
    b.sensor()
    assert acked(b.sense(b.sign(1), b.sign(2))) == 2
    assert acked(b.sense(b.sign(1, "xid.48"), stream="s2", sent_at=b.T0 + 101)) == 1
    assert acked(b.sense(b.sign(1), b.sign(2))) == 2
    assert Sign.objects.count() == 3
    for number in range(10):
        acked(b.sense(b.sign(1, "xid.63"), stream=f"t{number}"))
    assert acked(b.sense(b.sign(1), b.sign(2))) == 2, "forgotten by then, and still each row once"
    assert Sign.objects.count() == 13


def test_only_a_nodes_own_sensor_speaks_for_it(make_job: Any) -> None:
    job = make_job()
    b.sensor()
    b.sensor("gpu2", "token-2")
    assert post(b.sense(b.sign(1), node="gpu2")).status_code == 403
    assert post(b.sense(b.sign(1)), token="").status_code == 401
    assert post(b.sense(b.sign(1)), token="guessed").status_code == 401
    assert post(b.sense(b.sign(1)), token=b.TOKEN).status_code == 401, "a job's token, known as it is"
    assert job.token_digest == token_digest(b.TOKEN) and Sign.objects.count() == 0
    acked(b.sense(b.sign(1, node="gpu2", origin="slurm")))
    assert Sign.objects.get().node == "gpu1", "what a record says of its node is not believed"


def test_a_revoked_token_is_unknown(db: None) -> None:
    b.sensor()
    call_command("create_sensor_token", "gpu1", "--revoke")
    assert post(b.sense()).status_code == 401
    assert post(b.sense(), token="").status_code == 401


def test_a_sensors_token_is_no_jobs_token(make_job: Any) -> None:
    make_job()
    b.sensor()
    assert post(b.message(b.sign(1)), token=b.SENSOR_TOKEN, path="ingest").status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b.sense(node="../etc"),
        b.sense(protocol=2),
        b.sense(b.sign(1, at=9e18)),
        b.sense(sent_at=-5.0),
        b.sense({"seq": 1, "kind": "sign", "at": b.T0, "code": "xid.79"}),
        b.sense(clock_offset_s=1e12),
        b.sense(readers=["ok"]),
        [],
    ],
)
def test_a_malformed_message_changes_nothing(db: None, body: Any) -> None:
    b.sensor()
    assert post(body).status_code in (400, 403)
    assert Sign.objects.count() == 0 and NodeSensor.objects.get().received_at is None


def test_nothing_is_acked_that_is_not_committed(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **keys: Any) -> None:
        raise OperationalError("database is locked")

    b.sensor()
    with monkeypatch.context() as patch:
        patch.setattr(NodeSensor, "save", fails)
        assert post(b.sense(b.sign(1))).status_code == 503
    assert Sign.objects.count() == 0
    assert acked(b.sense(b.sign(1))) == 1


def test_a_flood_keeps_the_hardest_and_counts_the_rest(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_rows, "MOST_OF_A_SENSOR", 5)
    b.sensor()
    acked(b.sense(b.sign(1), *(b.sign(s, "xid.13", at=b.T0 + s) for s in range(2, 12))))
    assert codes()[0] == "xid.79" and Sign.objects.count() == 5
    acked(b.sense(*(b.sign(s, "pcie.corrected", at=b.T0 + s) for s in range(12, 30)), b.sign(30, "xid.48")))
    assert Sign.objects.count() == 5 and {"xid.79", "xid.48"} < set(codes())
    assert NodeSensor.objects.get().left_out == 25


def test_an_unknown_kind_is_acked_and_what_the_sensor_dropped_is_counted(db: None, wakes: list[str]) -> None:
    b.sensor()
    dropped = b.event(2, "dropped", records=7)
    assert acked(b.sense(b.record(1, "hologram"), dropped, b.sign(3, "xid.9999"), b.sign(4, "xid.63"))) == 4
    assert NodeSensor.objects.get().left_out == 7 and codes() == ["xid.9999", "xid.63"] and wakes == []


def test_a_gpu_that_fell_off_the_bus_stays_known_until_another_boot(db: None) -> None:
    b.sensor()
    two = [{"uuid": "GPU-a", "pci": "0000:1B:00"}, {"uuid": "GPU-b", "pci": "0000:9b:00"}]
    acked(b.sense(gpus=two))
    acked(b.sense(gpus=two[:1], sent_at=b.T0 + 101))
    assert NodeSensor.objects.get().gpus == {"0000:1b:00": "GPU-a", "0000:9b:00": "GPU-b"}
    acked(b.sense(gpus=two[:1], sent_at=b.T0 + 200, boot_id="b2"))
    assert NodeSensor.objects.get().gpus == {"0000:1b:00": "GPU-a"}


# --- agents -------------------------------------------------------------------------------------------------------


def test_an_agents_sign_is_the_jobs_word_whatever_it_claims(make_job: Any) -> None:
    make_job()
    claims = {"origin": "sensor", "source": "kernel", "rank": 1, "attrs": {"pci": "0000:9b:00"}}
    body = b.message(b.sign(1, **claims), b.sign(2, node="gpu2.cluster"), b.sign(3, node="head"))
    assert acked(body, token=b.TOKEN, path="ingest") == 3
    assert acked(body, token=b.TOKEN, path="ingest") == 3
    signs = list(Sign.objects.order_by("seq"))
    assert {sign.origin for sign in signs} == {"job"} and signs[0].rank == 1
    assert [sign.node for sign in signs] == ["gpu1", "gpu2", "gpu1"], "a node of the attempt, or else the reporter's"
    assert {sign.attempt for sign in signs} == {Attempt.objects.get()}


def test_a_flood_of_a_job_is_bounded_and_counted(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_rows, "MOST_OF_AN_AGENT", 3)
    make_job()
    soft = [b.sign(s, "python.exception", at=b.T0 + s) for s in range(2, 22)]
    acked(b.message(b.sign(1), *soft), token=b.TOKEN, path="ingest")
    assert codes() == ["xid.79", "python.exception", "python.exception"]
    assert TrainingJob.objects.get().facts["records_lost"] == {"signs": 18}


# --- tokens -------------------------------------------------------------------------------------------------------


def test_tokens_are_written_for_each_node_and_stored_as_digests(db: None, tmp_path: Path, capsys: Any) -> None:
    Cluster.objects.create(name="lab")
    call_command("create_sensor_token", "gpu[1-2]", "--out", str(tmp_path), "--url", "http://head:8765")
    config = json.loads((tmp_path / "gpu2/sensor.json").read_text())
    assert (tmp_path / "gpu2/sensor.json").stat().st_mode & 0o777 == 0o600
    assert (config["url"], config["node"]) == ("http://head:8765", "gpu2")
    sensor = NodeSensor.objects.get(node="gpu2")
    assert sensor.token_digest == token_digest(config["token"]) and "token" not in capsys.readouterr().out
    assert acked(b.sense(node="gpu2"), token=config["token"]) == 0
    call_command("create_sensor_token", "gpu2", "--cluster", "lab")
    name, token = capsys.readouterr().out.split()
    assert name == "gpu2" and acked(b.sense(node="gpu2"), token=token) == 0
    assert post(b.sense(node="gpu2"), token=config["token"]).status_code == 401, "a new token ends the old one"


@pytest.mark.parametrize("nodes", ["gpu[1", "../x", ""])
def test_what_is_no_host_list_is_refused(make_cluster: Any, nodes: str) -> None:
    make_cluster()
    with pytest.raises(CommandError):
        call_command("create_sensor_token", nodes)
    assert NodeSensor.objects.count() == 0
