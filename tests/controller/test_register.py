"""Registration: whose run it is, said once or often, in any order with its first messages."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controller.api.tokens import mint
from controller.clock import utcnow
from controller.models import ApiToken, Cluster, Submission, TrainingJob
from tests import builders as b
from worker_hooks.protocol.identity import token_digest

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def api_token(name: str = "ada", scope: str = "submit", days: int | None = 30, **columns: Any) -> str:
    user, _ = User.objects.get_or_create(username=name)
    minted = mint(user, scope, "laptop", None if days is None else timedelta(days=days), utcnow())
    ApiToken.objects.filter(pk=minted.row.pk).update(**columns) if columns else None
    return minted.token


def body(**keys: Any) -> dict[str, Any]:
    told = {"protocol": 1, "run_id": b.RUN_ID, "token_sha256": token_digest(b.TOKEN), "name": "mosaic", "user": "ada"}
    told |= {"cluster": "lab", "slurm_job_id": "7", "submitted_at": b.T0, "argv": ["-N2", "train.sbatch"]}
    return told | {"script": "train.sbatch", "script_digest": "sha256:00", "checkpoint_root": "/scratch/ckpt"} | keys


def post(told: dict[str, Any], token: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return Client().post("/api/v1/register", json.dumps(told), content_type="application/json", headers=headers)


def test_a_run_is_registered_as_unconfirmed_until_slurm_says_whose_it_is() -> None:
    response = post(body(), api_token())
    assert (response.status_code, response.json()) == (
        200,
        {"url": f"/jobs/{b.RUN_ID}", "owner_confirmed": False, "measured": {}},
    )
    job = TrainingJob.objects.get()
    assert (job.owner, job.name, job.slurm_job_id, job.state) == ("ada", "mosaic", "7", "queued")
    assert (job.cluster.name, job.checkpoint_root, job.enrolled) == ("lab", "/scratch/ckpt", True)
    assert job.token_digest == token_digest(b.TOKEN)
    submission = Submission.objects.get()
    assert (submission.slurm_job_id, submission.argv, submission.script) == (
        "7",
        ["-N2", "train.sbatch"],
        "train.sbatch",
    )


def test_the_same_call_again_changes_nothing_and_a_later_one_fills_the_job_id() -> None:
    token = api_token()
    assert post(body(slurm_job_id=None), token).status_code == 200
    assert not Submission.objects.exists()
    assert [post(body(), token).status_code for _ in range(3)] == [200, 200, 200]
    assert (TrainingJob.objects.get().slurm_job_id, Submission.objects.count()) == ("7", 1)


def test_a_replayed_old_registration_does_not_turn_a_resubmission_back() -> None:
    token = api_token()
    post(body(), token)
    TrainingJob.objects.update(owner_confirmed=True)
    assert post(body(slurm_job_id="9", submitted_at=b.T0 + 100), token).status_code == 200
    assert post(body(), token).status_code == 200
    job = TrainingJob.objects.get()
    assert (job.slurm_job_id, job.owner_confirmed, job.submissions.count()) == ("9", False, 2)


def test_another_token_for_the_same_run_is_a_conflict() -> None:
    token = api_token()
    post(body(), token)
    assert post(body(token_sha256=token_digest("stolen")), token).status_code == 409
    assert TrainingJob.objects.get().token_digest == token_digest(b.TOKEN)


def test_nobody_registers_for_somebody_else() -> None:
    post(body(), api_token("ada"))
    eve = api_token("eve")
    assert post(body(run_id="tj-000000000002"), eve).status_code == 403
    assert post(body(user="eve"), eve).status_code == 403
    assert TrainingJob.objects.get().owner == "ada"


def test_a_job_that_slurm_shows_as_another_users_is_refused() -> None:
    b.training_job("tj-000000000002", slurm_job_id="7", view={"user": "eve"})
    response = post(body(), api_token())
    assert (response.status_code, response.json()["where"]) == (403, "slurm_job_id")
    assert not TrainingJob.objects.filter(run_id=b.RUN_ID).exists()


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ({"scope": "read"}, 403),
        ({"scope": "operate"}, 200),
        ({"expires_at": utcnow() - timedelta(seconds=1)}, 401),
        ({"revoked_at": utcnow()}, 401),
    ],
)
def test_scopes_and_ends_of_tokens(token: dict[str, Any], status: int) -> None:
    assert post(body(), api_token(**token)).status_code == status


def test_a_token_of_a_user_who_left_is_dead_and_none_is_none() -> None:
    token = api_token()
    User.objects.update(is_active=False)
    assert post(body(), token).status_code == 401
    assert post(body(), "invented").status_code == 401
    assert Client().post("/api/v1/register", json.dumps(body()), content_type="application/json").status_code == 401


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"protocol": 9}, "registration.protocol"),
        ({"run_id": "../../etc"}, "registration.run_id"),
        ({"token_sha256": "the token itself"}, "registration.token_sha256"),
        ({"slurm_job_id": "7; scancel"}, "registration.slurm_job_id"),
        ({"submitted_at": "today"}, "registration.submitted_at"),
        ({"argv": "rm"}, "registration.argv"),
        ({"argv": ["x"] * 1001}, "registration.argv"),
        ({"name": 5}, "registration.name"),
    ],
)
def test_a_malformed_registration_is_told_where(keys: dict[str, Any], where: str) -> None:
    response = post(body(**keys), api_token())
    assert (response.status_code, response.json()["where"]) == (400, where)
    assert not TrainingJob.objects.exists()


def test_which_cluster(settings: Any) -> None:
    token = api_token()
    assert post(body(cluster=None), token).status_code == 503  # nothing seen yet: try again
    b.cluster("lab")
    assert post(body(cluster=None), token).status_code == 200
    assert post(body(run_id="tj-000000000002", cluster="mars"), token).status_code == 400
    b.cluster("other")
    assert post(body(run_id="tj-000000000003", cluster=None), token).status_code == 400
    settings.RELUME_CLUSTER = "other"
    assert post(body(run_id="tj-000000000004", cluster=None), token).status_code == 200
    assert TrainingJob.objects.get(run_id="tj-000000000004").cluster == Cluster.objects.get(name="other")


def test_the_registered_run_may_speak_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.ingest.door.WAKER.leave_note", lambda: None)
    post(body(), api_token())
    headers = {"Authorization": f"Bearer {b.TOKEN}"}
    message = json.dumps(b.message())
    response = Client().post("/api/v1/ingest", message, content_type="application/json", headers=headers)
    assert response.status_code == 200
