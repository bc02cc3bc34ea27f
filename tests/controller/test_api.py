"""The read API, health, and the commands that make users and tokens."""

import io
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from controller.clock import aware, utcnow
from controller.models import ApiToken, Checkpoint, Incident, Recovery
from tests import builders as b
from worker_hooks.protocol.identity import token_digest

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def make_token(name: str = "ada", **options: Any) -> str:
    User.objects.get_or_create(username=name)
    out = io.StringIO()
    call_command("create_token", name, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue().strip()


def get(path: str, token: str = "") -> Any:
    return Client().get(path, headers={"Authorization": f"Bearer {token}"} if token else {})


def test_a_training_job_as_json() -> None:
    job = b.training_job(step=12, state="training")
    first, second = b.attempt(job, 1, checks={"0": {}}), b.attempt(job, 2, first_step_at=aware(b.T0 + 30))
    Checkpoint.objects.create(
        training_job=job, folder="step-00000010.g1", step=10, generation=1, state="committed", committed_at=aware(b.T0)
    )
    incident = Incident.objects.create(
        cluster=job.cluster, training_job=job, attempt=first, cause="node_lost", summary="gpu1 is gone", reason="silent"
        , confidence=0.9, budget="infrastructure", detected_at=aware(b.T0 + 10), suspects=["gpu1"]
    )  # fmt: skip
    stamps = {name: {"at": b.T0 + at, "source": "x"} for name, at in (("fault", 5), ("detected", 10.25))}
    stamps |= {"first_new_step": {"at": b.T0 + 30.5, "source": "attempt:2:first_new_step_at"}}
    Recovery.objects.create(
        incident=incident, training_job=job, from_attempt=first, to_attempt=second, stamps=stamps, rpo_steps=2
    )
    data = get(f"/api/v1/jobs/{b.RUN_ID}", make_token(scope="read")).json()
    assert (data["state"], data["step"], data["owner"]) == ("training", 12, "ada")
    assert [a["generation"] for a in data["attempts"]] == [1, 2]
    assert data["attempts"][1]["first_step_at"] == b.T0 + 30
    assert (data["incident"]["summary"], data["incident"]["suspects"]) == ("gpu1 is gone", ["gpu1"])
    recovery = data["recoveries"][0]
    assert (recovery["rto_s"], recovery["rpo_steps"]) == (25.5, 2)
    assert round(sum(p["seconds"] for p in recovery["phases"]), 6) == 25.5
    assert data["checkpoints"][0]["folder"] == "step-00000010.g1"
    assert (data["checkpoints"][0]["tier"], data["checkpoints"][0]["copies"]) == ("shared", None)
    assert (list(data["verification"]), "token" in str(data)) == (["1"], False)


def test_others_see_nothing_and_staff_sees_all() -> None:
    b.training_job()
    path = f"/api/v1/jobs/{b.RUN_ID}"
    eve, root = make_token("eve"), make_token("root")
    User.objects.filter(username="root").update(is_staff=True)
    assert [get(path, token).status_code for token in ("", "invented", eve, root)] == [401, 401, 404, 200]
    assert get("/api/v1/jobs/tj-00000000dead", root).status_code == 404


def test_a_save_is_asked_for_by_the_owner_while_the_job_trains() -> None:
    job, path = b.training_job(state="training"), f"/api/v1/jobs/{b.RUN_ID}/save"

    def ask(token: str) -> int:
        return Client().post(path, headers={"Authorization": f"Bearer {token}"}).status_code

    assert (ask(make_token(scope="read")), ask(make_token("eve", scope="submit"))) == (403, 404)
    job.refresh_from_db()
    assert job.save_asked_at is None
    assert ask(make_token(scope="submit")) == 202
    job.refresh_from_db()
    assert job.save_asked_at is not None
    type(job).objects.update(state="queued")
    assert ask(make_token(scope="submit")) == 409


def test_health_says_how_old_the_view_of_slurm_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get("/api/v1/health").json()["view_age_s"] is None
    b.cluster(view_at=utcnow())
    assert get("/api/v1/health").json()["view_age_s"] < 60

    def away() -> None:
        raise OperationalError("no route")

    monkeypatch.setattr("controller.api.views.connection.ensure_connection", away)
    assert get("/api/v1/health").status_code == 503


def test_a_token_is_printed_once_and_stored_as_a_digest() -> None:
    token = make_token(scope="submit", days=10)
    row = ApiToken.objects.get()
    assert (row.digest, row.scope) == (token_digest(token), "submit")
    assert row.expires_at is not None and 9 < (row.expires_at - utcnow()).days + 1 <= 10
    assert make_token(days=0) and ApiToken.objects.get(expires_at=None)


def test_commands_refuse_what_they_cannot_do(tmp_path: Any) -> None:
    with pytest.raises(CommandError, match="no user 'eve'"):
        call_command("create_token", "eve")
    out = io.StringIO()
    call_command("create_user", "ada", stdout=out, stderr=io.StringIO())
    assert Client().login(username="ada", password=out.getvalue().strip())
    with pytest.raises(CommandError, match="already"):
        call_command("create_user", "ada")
    weak = tmp_path / "password"
    weak.write_text("short\n")
    with pytest.raises(CommandError, match="too short"):
        call_command("create_user", "eve", password_file=str(weak))
    with pytest.raises(CommandError, match="cannot be a user name"):
        call_command("create_user", "eve;rm")
