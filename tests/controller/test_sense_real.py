"""A sensor's process and the real endpoint on loopback: each sign is one row, whoever was away, from its node alone."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from controller.models import NodeSensor, Sign
from tests import builders as b
from tests.worker_hooks.sensor_stage import BOOT, PCI, UUID, SensorStage, eventually

pytestmark = [pytest.mark.db, pytest.mark.django_db(transaction=True)]


class Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


class Endpoint:
    """The controller's web application on a port of loopback that stays the same; `away` refuses connections."""

    def __init__(self) -> None:
        self.port = 0
        self._server: ThreadedWSGIServer | None = None
        self.back()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def back(self) -> None:
        self._server = ThreadedWSGIServer(("127.0.0.1", self.port), Handler, connections_override=None)
        self._server.daemon_threads = False  # closing waits for the requests under way, and so for their connections
        self._server.set_app(get_wsgi_application())
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def away(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr("controller.ingest.door.WAKER.leave_note", lambda: None)
    made = Endpoint()
    yield made
    made.away()


@pytest.fixture
def stage(endpoint: Endpoint, tmp_path: Path) -> Iterator[SensorStage]:
    """gpu1, with the token that `create_sensor_token` wrote for it; gpu2 has one too."""
    b.cluster()
    call_command("create_sensor_token", "gpu[1-2]", "--out", str(tmp_path / "etc"), "--url", endpoint.url)
    made = SensorStage(tmp_path, endpoint.url, token_of(tmp_path, "gpu1"))
    yield made
    made.close()


def token_of(folder: Path, node: str) -> str:
    token: str = json.loads((folder / f"etc/{node}/sensor.json").read_text())["token"]
    return token


def codes() -> list[str]:
    return list(Sign.objects.order_by("seq").values_list("code", flat=True))


def heard() -> bool:
    return NodeSensor.objects.filter(node="gpu1", received_at__isnull=False).exists()


def test_an_xid_is_one_row_of_the_nodes_sensor(stage: SensorStage) -> None:
    stage.start()
    eventually(heard)
    stage.xid(79)
    eventually(codes)
    stage.xid(94)
    eventually(lambda: "xid.94" in codes())
    assert codes() == ["xid.79", "xid.94"]
    sign, sensor = Sign.objects.get(code="xid.79"), NodeSensor.objects.get(node="gpu1")
    assert (sign.origin, sign.node, sign.sensor, sign.layer) == ("sensor", "gpu1", sensor, "kernel")
    assert (sign.attrs["pci"], sign.attrs["gpu_uuid"]) == (PCI, UUID)
    assert "79, pid='<unknown>'" in sign.raw
    assert (sensor.boot_id, sensor.gpus, sensor.readers["kernel"]) == (BOOT, {PCI: UUID}, "ok")


def test_killed_with_the_endpoint_away_every_sign_is_one_row(stage: SensorStage, endpoint: Endpoint) -> None:
    first = stage.start()
    stage.xid(79)
    eventually(codes)
    endpoint.away()
    stage.xid(48)
    eventually(lambda: stage.spooled("xid.48"))
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    stage.xid(94)  # while no sensor runs
    endpoint.back()
    stage.start()
    stage.xid(95)
    eventually(lambda: "xid.95" in codes())
    assert codes() == ["xid.79", "xid.48", "xid.94", "xid.95"]


def test_acked_or_not_a_row_is_written_once(
    stage: SensorStage, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the commit and the answer, as often as can be: the rows are there, the sensor does not know."""
    committed, let_go = threading.Event(), threading.Event()
    first = stage.start()
    eventually(heard)
    with monkeypatch.context() as patch:
        patch.setattr("controller.ingest.door.encode_answer", held_back(committed, let_go))
        stage.xid(79)
        assert committed.wait(60)
        first.send_signal(signal.SIGKILL)
        first.wait(60)
        let_go.set()
        assert codes() == ["xid.79"]
    stage.start()
    stage.xid(94)
    eventually(lambda: "xid.94" in codes())
    assert codes() == ["xid.79", "xid.94"]


def held_back(committed: threading.Event, let_go: threading.Event) -> Callable[[Any], dict[str, Any]]:
    from worker_hooks.protocol.answers import encode_answer

    def answer(value: Any) -> dict[str, Any]:
        if value.acked:
            committed.set()
            let_go.wait(60)
        return encode_answer(value)

    return answer


@pytest.mark.parametrize(
    ("whose", "status", "words"), [("nobody", 401, "unknown token"), ("gpu2", 403, "belongs to the sensor of gpu2")]
)
def test_a_token_that_is_not_this_nodes_is_refused(
    stage: SensorStage, tmp_path: Path, whose: str, status: int, words: str
) -> None:
    """The signs wait: with the right token they are rows."""
    stage.configure(token="guessed" if whose == "nobody" else token_of(tmp_path, whose))
    refused = stage.start()
    stage.xid(79)
    eventually(lambda: f"refuses this sensor ({status}" in stage.said and stage.spooled("xid.79"))
    assert words in stage.said and codes() == [] and not heard()
    refused.kill()
    refused.wait(60)
    stage.configure()
    stage.start()
    eventually(lambda: codes() == ["xid.79"])
