"""The page of a run whose checkpoints or whose end are in question: resume cases R02, R24, R28, R31 to a person."""

from collections.abc import Callable

import pytest
from django.test import Client

from controller.models import Attempt, TrainingJob
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db
RUN = "tj-4f2a9c0b11de"


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


def words(client: Client, path: str = f"/jobs/{RUN}") -> str:
    return Text(client.get(path).text).words.lower()


def test_alarms_about_checkpoints_stand_with_their_attempt(sign_in: Callable[..., Client], story: Story) -> None:
    """R24: the cause in words, how often, and the words of the system itself; nothing of it is markup."""
    raw = "[Errno 122] Disk quota exceeded: '/scratch/<b>/latest'"
    saves = {"count": 1, "raw": "saving step 20: [Errno 28] No space left on device", "at": 2.0}
    alarms = {"checkpoint_tidy": {"count": 3, "raw": raw, "at": 1.0}, "save_failed": saves}
    Attempt.objects.filter(pk=story.attempts[2].pk).update(saving={"alarms": alarms})
    said = words(sign_in("ada"))
    assert f"storage refused what follows a save, 3 times, the quota is used up: {raw}".lower() in said
    assert "a save failed, no space is left: saving step 20" in said


def test_a_run_that_began_from_scratch_says_so(sign_in: Callable[..., Client], story: Story) -> None:
    """R28: the second attempt of the story made its step 1 although the first had committed checkpoints."""
    ada = sign_in("ada")
    assert "restarted_from_scratch" not in words(ada)
    Attempt.objects.filter(pk=story.attempts[1].pk).update(start_step=0)
    assert "restarted_from_scratch: it began at step 0, although step" in words(ada)


def test_six_warnings_and_no_save_in_time_are_counted(sign_in: Callable[..., Client], story: Story) -> None:
    """R31: an emergency save that never came must not look like a run that was never warned."""
    attempt = story.attempts[1]
    assert attempt.ended_at is not None
    end = attempt.ended_at.timestamp()
    asked = [{"kind": "signal", "id": str(number), "at": end - 30 + number} for number in range(6)]
    Attempt.objects.filter(pk=attempt.pk).update(saving={"asked": asked})
    assert "0 of 6 saves asked for committed" in words(sign_in("ada"))


@pytest.mark.parametrize("path", [f"/jobs/{RUN}", "/"])
def test_a_run_that_ended_before_its_last_step_is_never_called_finished(
    sign_in: Callable[..., Client], story: Story, path: str
) -> None:
    """R02: on its page and in the list of jobs."""
    ada = sign_in("ada")
    incident = TrainingJob.objects.get(run_id=RUN).incidents.order_by("-detected_at", "-pk")[0]
    summary, reason = "Ended before its last step", "80 of 160 steps; no step after the restore"
    columns = {"cause": "incomplete", "state": "awaiting_operator", "summary": summary, "reason": reason}
    type(incident).objects.filter(pk=incident.pk).update(**columns)
    TrainingJob.objects.filter(run_id=RUN).update(state="stopped", total_steps=160, step=80)
    said = words(ada, path)
    assert "incomplete, needs you" in said
    if path != "/":
        assert reason in said and summary.lower() in said
