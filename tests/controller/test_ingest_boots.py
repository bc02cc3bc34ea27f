"""Who may speak in an agent's name: not another boot of its host; and what it says of its machine is kept once."""

import json
from typing import Any

import pytest
from django.test import Client

from controller.clock import aware
from controller.models import AgentReport
from tests import builders as b

pytestmark = pytest.mark.db
CLOCK = [b.T0 + 101.0]


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK[0] = b.T0 + 101.0
    monkeypatch.setattr("controller.ingest.views.clock.now", lambda: CLOCK[0])
    monkeypatch.setattr("controller.ingest.door.WAKER.leave_note", lambda: None)


def post(after_s: float = 0.0, **keys: Any) -> AgentReport:
    CLOCK[0] += after_s
    body = b.message(**{"sent_at": CLOCK[0], **keys})
    headers = {"Authorization": f"Bearer {b.TOKEN}"}
    answer = Client().post("/api/v1/ingest", json.dumps(body), content_type="application/json", headers=headers)
    assert answer.status_code == 200, answer.content
    return AgentReport.objects.get()


@pytest.mark.parametrize(("boot_id", "counts"), [("b1", True), (None, True), ("b2", False)])
def test_a_message_from_another_boot_is_no_sign_of_life(make_job: Any, boot_id: str | None, counts: bool) -> None:
    make_job()
    first = post(boot_id="b1")
    later = post(30.0, boot_id=boot_id)
    assert (later.received_at > first.received_at) is counts
    assert later.boot_id == "b1"


def test_its_records_count_all_the_same(make_job: Any) -> None:
    """Nothing that was measured is lost for it."""
    make_job()
    post(boot_id="b1")
    CLOCK[0] += 30
    body = b.message(b.losses(1, [5]), boot_id="b2", sent_at=CLOCK[0])
    headers = {"Authorization": f"Bearer {b.TOKEN}"}
    answer = Client().post("/api/v1/ingest", json.dumps(body), content_type="application/json", headers=headers)
    assert answer.json()["acked"] == 1


def test_a_message_without_a_boot_id_forgets_none(make_job: Any) -> None:
    make_job()
    post(boot_id="b1")
    post(1.0, boot_id=None)
    assert post(30.0, boot_id="b2").received_at == aware(b.T0 + 102.0)


def test_what_it_says_of_its_machine_is_kept_once(make_job: Any) -> None:
    make_job()
    assert post().identity == {}
    said = {"machine_id": None, "macs": ["m1"], "guids": [], "gpus": [], "serials": []}
    assert post(1.0, machine=said).identity == said
    assert post(1.0, machine={**said, "macs": ["m2"]}).identity == said, "hardware does not change under an agent"
    assert post(1.0).identity == said
    assert post(1.0, machine="nonsense").identity == said
