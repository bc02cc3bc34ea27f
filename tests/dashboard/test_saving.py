"""On the page of a training job: what the present interval is expected to lose beside the best, and "save now"."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controller.models import AuditEntry, TrainingJob
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db
RUN = "tj-4f2a9c0b11de"
SAVING = {
    "at": 1.0,
    "cost_s": 0.4,
    "durable_s": 20.0,
    "restart_s": 30.0,
    "interval_s": 420.0,
    "optimum_s": 420.0,
    "lost_share": 0.0021,
    "mtbf_s": 5 * 86400.0,
    "present_s": 3600.0,
    "present_lost_share": 0.0105,
}


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


def words(client: Client) -> str:
    return Text(client.get(f"/jobs/{RUN}").text).words


def test_the_present_interval_stands_beside_the_best(sign_in: Callable[..., Client], story: Story) -> None:
    ada = sign_in("ada")
    TrainingJob.objects.filter(run_id=RUN).update(saving=SAVING)
    said = (
        "Saves every 1 h 00 min: 1.05 % of the time is expected to be lost; saving every 7 min would lose 0.21 % of the"
        " time (a save blocks 0.40 s; one failure in 5 days is expected)."
    )
    assert said in words(ada)
    TrainingJob.objects.filter(run_id=RUN).update(saving={**SAVING, "present_s": None, "present_lost_share": None})
    assert "Saving every 7 min would lose 0.21 %" in words(ada)


def test_the_owner_asks_for_a_save_once(sign_in: Callable[..., Client], story: Story) -> None:
    ada = sign_in("ada")
    assert "Save now" in words(ada)
    answer = ada.post(f"/jobs/{RUN}/save")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/jobs/{RUN}")
    assert (TrainingJob.objects.get(run_id=RUN).save_asked_at is None, AuditEntry.objects.get().who) == (False, "ada")
    assert "Save now" not in words(ada) and "a save was asked for" in words(ada)


def test_who_may_only_look_may_not_ask(sign_in: Callable[..., Client], story: Story) -> None:
    assert sign_in("eve").post(f"/jobs/{RUN}/save").status_code == 404
    assert sign_in("ada").get(f"/jobs/{RUN}/save").status_code == 405
    assert TrainingJob.objects.get(run_id=RUN).save_asked_at is None


def test_the_token_against_forged_requests_is_asked_for(sign_in: Callable[..., Client], story: Story) -> None:
    sign_in("ada")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="ada"))
    assert strict.post(f"/jobs/{RUN}/save").status_code == 403


def test_a_job_that_has_ended_offers_nothing(sign_in: Callable[..., Client], story: Story) -> None:
    TrainingJob.objects.filter(run_id=RUN).update(state="stopped", saving=SAVING)
    ada = sign_in("ada")
    assert "Save now" not in words(ada)
    assert ada.post(f"/jobs/{RUN}/save").status_code == 302
    assert TrainingJob.objects.get(run_id=RUN).save_asked_at is None


def test_what_the_user_waived_stands_with_the_checkpoints(sign_in: Callable[..., Client], story: Story) -> None:
    ada = sign_in("ada")
    assert "waived" not in words(ada)
    TrainingJob.objects.filter(run_id=RUN).update(facts={"waived": "<b>, scheduler"})
    assert "incomplete, waived by the user: <b>, scheduler" in words(ada)
    TrainingJob.objects.filter(run_id=RUN).update(facts={"waived": ""})
    assert "waived" not in words(ada)


def test_what_lies_on_the_nodes_stands_with_the_checkpoints_and_is_not_the_newest_good(
    sign_in: Callable[..., Client], story: Story
) -> None:
    ada = sign_in("ada")
    newest = story.main.checkpoints.filter(state="committed").first()
    assert newest is not None
    before = words(ada)
    assert "on the nodes" not in before
    for step, copies in ((newest.step + 20, 8), (newest.step + 40, None), (newest.step, None)):
        folder = f"step-{step:08}.g{newest.generation}"
        story.main.checkpoints.create(
            folder=folder, step=step, generation=newest.generation, tier="local", copies=copies, state="committed",
            committed_at=newest.committed_at,
        )  # fmt: skip
    found = words(ada)
    assert "on the nodes every 20 steps" in found
    assert f"step-{newest.step + 20:08}.g{newest.generation} on the nodes, 8 copies on peers" in found
    assert "Committed, compared when it is read" in found
    assert f"{newest.folder} newest good" in found
    lost, kept = (story.main.step - step for step in (newest.step, newest.step + 40))
    assert f"If it failed now {lost} steps" in found and f"; {max(kept, 0)} if the nodes live" in found


def test_a_save_that_was_asked_for_is_not_answered_by_one_on_the_nodes(
    sign_in: Callable[..., Client], story: Story
) -> None:
    ada = sign_in("ada")
    ada.post(f"/jobs/{RUN}/save")
    asked = TrainingJob.objects.get(run_id=RUN).save_asked_at
    assert asked is not None
    story.main.checkpoints.create(
        folder="step-00099999.g3", step=99999, generation=3, tier="local", state="committed",
        committed_at=asked + timedelta(seconds=5),
    )  # fmt: skip
    assert "a save was asked for" in words(ada)
