"""What the page says of one attempt: is it the same run, and were the saves that somebody asked for in time?"""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from controller.api.job_json import job_json
from controller.models import Attempt, TrainingJob
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db
RUN = "tj-4f2a9c0b11de"


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


def words(client: Client) -> str:
    return Text(client.get(f"/jobs/{RUN}").text).words


def ask(story: Story, *, before_end_s: float, saved: bool) -> Attempt:
    """A signal came to the second attempt so long before its end; the save begun for it is its last checkpoint."""
    attempt = story.attempts[1]
    assert attempt.ended_at is not None
    at = attempt.ended_at - timedelta(seconds=before_end_s)
    row = TrainingJob.objects.get(run_id=RUN).checkpoints.get(generation=2)
    attempt.saving = {
        "asked": [{"kind": "signal", "id": "1", "at": at.timestamp()}],
        "begun": [{"step": row.step if saved else row.step + 7, "why": "", "at": at.timestamp() + 1.0}],
    }
    attempt.save()
    row.committed_at = at + timedelta(seconds=8)
    row.save()
    return attempt


def test_a_save_before_the_end_says_how_much_time_was_left(sign_in: Callable[..., Client], story: Story) -> None:
    ask(story, before_end_s=60, saved=True)
    said = words(sign_in("ada"))
    assert "1 of 1 save asked for committed, 52 s before the end in time" in said


def test_a_save_that_came_too_late_says_how_much_time_there_was_and_what_was_lost(
    sign_in: Callable[..., Client], story: Story
) -> None:
    """R31: the grace is shorter than step and save; what is counted is not relied on."""
    attempt = ask(story, before_end_s=20, saved=False)
    said = words(sign_in("ada"))
    assert "0 of 1 save asked for committed; the end came 20 s after the one that was not too late" in said
    lost = (attempt.step or 0) - TrainingJob.objects.get(run_id=RUN).checkpoints.get(generation=2).step
    assert lost > 0 and f"{lost} steps after its last checkpoint lost" in said
    told = job_json(TrainingJob.objects.get(run_id=RUN), story.now)["attempts"]
    assert told[1]["asked_saves"] == {"asked": 1, "committed": 0, "left_s": None, "short_s": 20.0}
    assert told[0]["asked_saves"]["asked"] == 0


def test_what_saving_was_like_stands_with_its_attempt(sign_in: Callable[..., Client], story: Story) -> None:
    Attempt.objects.filter(pk=story.attempts[2].pk).update(
        saving={"left_out": 3, "in_pieces": 1, "linked_bytes": 2_500_000_000, "waived": "<b>, scheduler"}
    )
    ada = sign_in("ada")
    said = words(ada)
    for text in (
        "saved without <b>, scheduler, waived by the user",
        "3 saves left out, one was still in flight",
        "1 written in pieces while training waited (memory limit)",
        "2.3 GiB not written again, they had not changed",
        "is not read back yet",
    ):
        assert text.lower() in said.lower(), text
    newest = story.main.checkpoints.filter(generation=3, state="committed").order_by("-step")[0]
    newest.verified_at = newest.committed_at
    newest.save()
    assert "is read back from storage" in words(ada)


def test_the_checks_of_an_attempt_are_told_with_their_names_and_reasons(
    sign_in: Callable[..., Client], story: Story
) -> None:
    attempt = story.attempts[2]
    checks = attempt.checks["0"]["before_first_step"]["checks"]
    checks += [
        {"name": "layout", "outcome": "RESHARDED", "expected": "x", "actual": "y", "why": "mesh [4], now mesh [2, 2]"},
        {"name": "data_position:loader.1", "outcome": "PASS", "expected": "1", "actual": "1"},
    ]
    spike = {
        "name": "loss",
        "outcome": "DEGRADED",
        "expected": "1",
        "actual": "9",
        "code": "LOSS_SPIKE",
        "why": "9 > 2",
    }
    attempt.checks["0"]["replay"] |= {"outcome": "DEGRADED", "checks": [spike]}
    attempt.save()
    said = words(sign_in("ada"))
    assert "Attempt 3: The same state on another layout" in said
    assert "rank 0: mesh [4], now mesh [2, 2]" in said and "rank 0: LOSS_SPIKE, 9 > 2" in said
    assert "Data position (loader.1)" in said
