"""Arrays: one row when they are registered, a training job for each task that starts or speaks; het jobs as one."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controller.clock import aware
from controller.models import Attempt, Cluster, JobArray, TrainingJob
from controller.slurm.fake import FakeSlurm
from controller.snapshot.poll import poll
from tests import builders as b
from tests.controller.test_register import api_token, body, post
from worker_hooks.protocol.identity import token_digest

pytestmark = [pytest.mark.db, pytest.mark.django_db]
TASK = f"{b.RUN_ID}-3"
OTHER = "tj-000000000002"


@pytest.fixture(autouse=True)
def no_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.ingest.door.WAKER.leave_note", lambda: None)


def registered(tasks: str = "0-9%2", **columns: Any) -> JobArray:
    quiet = {"owner": "ada", "name": "sweep", "slurm_job_id": "1", "tasks": tasks, "run_id": b.RUN_ID}
    quiet |= {"token_digest": token_digest(b.TOKEN), "checkpoint_root": "/ck"}
    quiet |= {"submitted_at": aware(b.T0), "registered_at": aware(b.T0)}
    cluster = Cluster.objects.get_or_create(name="fake", defaults={"watching_since": aware(b.T0 - 100)})[0]
    return JobArray.objects.create(cluster=cluster, **(quiet | columns))


def say(run_id: str = TASK, token: str = b.TOKEN, job: str = "1_3", **keys: Any) -> Any:
    message = json.dumps(b.message(run_id=run_id, job={"slurm_job_id": job, "cluster": "fake"}, **keys))
    headers = {"Authorization": f"Bearer {token}"}
    return Client().post("/api/v1/ingest", message, content_type="application/json", headers=headers)


class Clock:
    def __init__(self) -> None:
        self.now = b.T0

    def __call__(self) -> Any:
        return aware(self.now)


# --- registration ---------------------------------------------------------------------------------------------------


def test_an_array_is_one_row_and_no_training_job() -> None:
    response = post(body(array="0-9999%50"), api_token())
    assert (response.status_code, response.json()) == (200, {"url": f"/?q={b.RUN_ID}"})
    array = JobArray.objects.get()
    assert (array.tasks, array.owner, array.slurm_job_id, array.name) == ("0-9999%50", "ada", "7", "mosaic")
    assert (array.argv, array.script, array.checkpoint_root) == (
        ["-N2", "train.sbatch"],
        "train.sbatch",
        "/scratch/ckpt",
    )
    assert not TrainingJob.objects.exists()


def test_it_may_be_said_again_and_the_job_id_later() -> None:
    token = api_token()
    assert [post(body(array="0-3", slurm_job_id=job), token).status_code for job in (None, "7", "7", None)] == [200] * 4
    assert JobArray.objects.get().slurm_job_id == "7"


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        ({"token_sha256": token_digest("stolen")}, 409),
        ({"array": "0-99"}, 409),
        ({"array": None}, 409),
        ({"run_id": TASK}, 400),
        ({"run_id": TASK, "array": None}, 400),
        ({"array": 5}, 400),
        ({"array": "1," * 40000}, 400),
        ({"user": "eve"}, 403),
    ],
)
def test_what_an_array_is_not_registered_as(keys: dict[str, Any], status: int) -> None:
    token = api_token()
    post(body(array="0-3"), token)
    assert post(body(**{"array": "0-3", **keys}), token).status_code == status
    assert (JobArray.objects.get().tasks, TrainingJob.objects.count()) == ("0-3", 0)


def test_a_single_job_does_not_become_an_array_nor_anybody_elses() -> None:
    token = api_token()
    post(body(), token)
    assert post(body(array="0-3"), token).status_code == 409
    post(body(run_id=OTHER, array="0-3"), token)
    assert post(body(run_id=OTHER, array="0-3", user="eve"), api_token("eve")).status_code == 403


def test_an_array_that_slurm_shows_as_another_users_is_refused() -> None:
    b.training_job("tj-000000000009-1", slurm_job_id="7_1", view={"user": "eve"})
    response = post(body(array="0-3"), api_token())
    assert (response.status_code, response.json()["where"]) == (403, "slurm_job_id")
    assert not JobArray.objects.exists()


# --- as agents speak ------------------------------------------------------------------------------------------------


def test_a_tasks_first_word_makes_its_training_job() -> None:
    array = registered()
    assert [say().status_code, say().status_code] == [200, 200]
    job = TrainingJob.objects.get()
    assert (job.run_id, job.slurm_job_id, job.name, job.owner) == (TASK, "1_3", "sweep [3]", "ada")
    assert (job.array, job.checkpoint_root, job.owner_confirmed) == (array, "/ck", False)
    assert Attempt.objects.get().slurm_job_id == "1_3"


@pytest.mark.parametrize(
    ("run_id", "token", "status"),
    [
        (f"{b.RUN_ID}-10", b.TOKEN, 403),
        (b.RUN_ID, b.TOKEN, 403),
        (f"{OTHER}-3", b.TOKEN, 403),
        (TASK, "other-token", 403),
        (TASK, "unknown", 401),
        (f"{b.RUN_ID}-03", b.TOKEN, 403),
    ],
)
def test_the_token_speaks_for_the_tasks_of_its_array_only(run_id: str, token: str, status: int) -> None:
    registered()
    registered(run_id=OTHER, token_digest=token_digest("other-token"), slurm_job_id="2")
    assert say(run_id, token).status_code == status
    assert not TrainingJob.objects.exists()


def test_a_message_that_is_refused_leaves_no_row() -> None:
    registered()
    assert say(generation=0).status_code == 400
    message = b.message(run_id=TASK, job={"user": "eve"})
    headers = {"Authorization": f"Bearer {b.TOKEN}"}
    answer = Client().post("/api/v1/ingest", json.dumps(message), content_type="application/json", headers=headers)
    assert answer.status_code == 403 and not TrainingJob.objects.exists()


def test_a_tasks_page_opens_and_its_array_is_found_by_slurms_number() -> None:
    registered()
    say()
    TrainingJob.objects.update(owner_confirmed=True)
    user = User.objects.create(username="ada")
    client = Client()
    client.force_login(user)
    assert client.get(f"/jobs/{TASK}").status_code == 200
    for text in ("1", "1_3", b.RUN_ID):
        assert TASK in client.get("/", {"q": text}).content.decode()
    assert TASK not in client.get("/", {"q": "12"}).content.decode()


def test_tasks_in_a_form_that_only_a_newer_slurm_knows_are_any() -> None:
    registered(tasks="every other one")
    assert say().status_code == 200


# --- as Slurm shows -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slurm(clock: Clock) -> FakeSlurm:
    made = FakeSlurm(clock)
    made.add_nodes("gpu1", "gpu2")
    return made


def test_tasks_appear_when_they_start_under_slurms_spelling(slurm: FakeSlurm, clock: Clock) -> None:
    array = registered()
    slurm.submit_array(range(10), num_nodes=1)
    assert poll(array.cluster, slurm, clock.now)
    first, second = TrainingJob.objects.order_by("pk")
    for job in (first, second):  # two nodes: eight tasks wait
        assert (job.run_id, job.slurm_job_id) == (f"{b.RUN_ID}-{job.slurm_job_id[2:]}", job.view["job_id"])
        assert (job.owner_confirmed, job.view["base"]) == (True, "RUNNING")


def test_tasks_that_wait_have_no_rows(slurm: FakeSlurm, clock: Clock) -> None:
    array = registered()
    slurm.submit_array(range(10), num_nodes=1, held="JobHeldUser")
    assert poll(array.cluster, slurm, clock.now)
    assert not TrainingJob.objects.exists()


def test_a_requeued_task_keeps_its_run(slurm: FakeSlurm, clock: Clock) -> None:
    array = registered()
    slurm.submit_array([3], num_nodes=1)
    slurm.tick()
    poll(array.cluster, slurm, clock.now)
    slurm.requeue_job("1_3", hold=True)
    clock.now += 10
    poll(array.cluster, slurm, clock.now)
    job = TrainingJob.objects.get()
    assert (job.run_id, job.slurm_job_id) == (TASK, "1_3")
    assert job.view["job_id"] == "1_3" and (job.view["base"], job.view["restarts"]) == ("PENDING", 1)


def test_what_slurm_shows_and_what_agents_say_are_one_run(slurm: FakeSlurm, clock: Clock) -> None:
    array = registered()
    slurm.submit_array([3], num_nodes=1)
    slurm.tick()
    say()
    poll(array.cluster, slurm, clock.now)
    assert say(generation=2).status_code == 200
    job = TrainingJob.objects.get()
    assert job.owner_confirmed and job.attempts.count() == 2


def test_another_users_array_under_the_same_number_is_not_this_one(slurm: FakeSlurm, clock: Clock) -> None:
    array = registered()
    slurm.submit_array([3], num_nodes=1, user="eve")
    slurm.tick()
    poll(array.cluster, slurm, clock.now)
    assert not TrainingJob.objects.exists()


def test_an_array_with_nothing_left_to_start_is_closed_before_its_number_is_used_again(
    slurm: FakeSlurm, clock: Clock
) -> None:
    array = registered()
    (task,) = slurm.submit_array([3], num_nodes=1)
    slurm.tick()
    slurm.end_job(task)
    poll(array.cluster, slurm, clock.now)
    array.refresh_from_db()
    assert array.ended_at is None, "a view may be older than the submission"
    clock.now += 61
    poll(array.cluster, slurm, clock.now)
    array.refresh_from_db()
    assert array.ended_at == aware(clock.now)


# --- het jobs -------------------------------------------------------------------------------------------------------


def test_a_het_job_is_one_training_job_with_the_nodes_of_all_components(slurm: FakeSlurm, clock: Clock) -> None:
    cluster = Cluster.objects.create(name="fake", watching_since=aware(b.T0 - 100))
    b.training_job(cluster=cluster, slurm_job_id="1")
    slurm.submit_het([{"num_nodes": 1}, {"num_nodes": 1}])
    slurm.tick()
    poll(cluster, slurm, clock.now)
    job = TrainingJob.objects.get()
    assert job.view["job_id"] == "1" and sorted(job.view["nodes"]) == ["gpu1", "gpu2"]
