"""The page of one training job: sentences, sums, hostile text, and answers that say that nothing changed."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from controller.models import Attempt, Incident, Recovery
from tests.dashboard import rows
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db

RUN = "tj-4f2a9c0b11de"
PAGE = f"/jobs/{RUN}"


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


@pytest.fixture
def ada(sign_in: Callable[..., Client]) -> Client:
    return sign_in("ada")


def page(client: Client, address: str = PAGE) -> str:
    return Text(client.get(address).text).words


def test_it_opens_with_a_sentence_and_says_why_it_restarted(ada: Client, story: Story) -> None:
    words = page(ada)
    assert "Training — attempt 3 of 3, step 964" in words and "since the last restart" in words
    assert "because its agent fell silent, two vantage points get no answer, and other nodes answer" in words
    assert "The run is verified to be the same run." in words
    assert "5 steps repeated, 19.0 GPU-hours" in words
    assert "7 of 8 infrastructure; process 3 of 3" in words


def test_the_steps_that_a_failure_would_repeat_count_from_the_newest_committed(ada: Client, story: Story) -> None:
    assert "If it failed now 4 steps" in page(ada)
    story.main.checkpoints.filter(step__gt=900).update(state="quarantined")
    assert "If it failed now 604 steps" in page(ada)


def test_incidents_show_evidence_actions_and_checks(ada: Client, story: Story) -> None:
    words = page(ada)
    assert "Resolved and verified" in words
    assert "Slurm, clears gpu-0422 ALLOCATED" in words
    assert "Hold gpu-0422 done in 1.3 s" in words
    assert "Requeue Slurm job 771204 done in 4.4 s" in words
    assert "Is it the same run? Yes, 8 of 8 agree" in words
    missing = "told to end, torn down, released, allocated (queue wait), warmed up"
    assert f"Not seen, and so part of the phase after it: {missing}." in words


def test_where_the_shares_of_the_resumed_checkpoint_were_read_is_said_where_any_came_from_a_node(
    ada: Client, story: Story
) -> None:
    assert "Shares read" not in page(ada)
    attempt = story.attempts[2]
    for rank, places in (("0", {"local": 1}), ("1", {"local": 1, "peer": 2}), ("2", {})):
        attempt.checks[rank]["before_first_step"]["restored_from"] = places
    attempt.save()
    assert "Shares read : 2 on their own node, 2 brought from another node" in page(ada)


def test_a_back_off_says_until_when_and_why(ada: Client, story: Story) -> None:
    action = story.incident.actions.get(kind="requeue_excluding")
    action.state, action.stage, action.outcome = "ready", "", ""
    action.due_at = action.created_at + timedelta(seconds=30)
    action.reason = "Launch failed: gpu-0422; the next start waits 30 s"
    action.save()
    words = page(ada)
    until = action.due_at.strftime("%H:%M:%S")
    assert f"Requeue Slurm job 771204 waits until {until} UTC" in words
    assert "Launch failed: gpu-0422; the next start waits 30 s" in words
    story.incident.actions.update(due_at=action.created_at)
    assert "Requeue Slurm job 771204 about to begin" in page(ada)


def test_a_check_that_failed_is_said_first(ada: Client, story: Story) -> None:
    Attempt.objects.filter(pk=story.attempts[2].pk).update(checks=rows.checks(4, 910, random_state=("aa11", "bb22")))
    Recovery.objects.filter(incident=story.incident).update(verification="FAIL")
    Incident.objects.filter(pk=story.incident.pk).update(
        state="awaiting_operator", cause="verification_failed", ask="look"
    )
    story.main.state = "stopped"
    story.main.save()
    words = page(ada)
    assert "Check failed, needs you —" in words
    assert "No, 1 of 8 differ" in words
    assert "rank 1: bb22, expected aa11; 3 of 4 ranks agree" in words
    assert "verified to be the same run" not in words


def test_every_state_has_its_sentence(ada: Client, story: Story) -> None:
    said = {
        "queued": "In the queue — attempt 1, Priority",
        "starting": "Starting — attempt 1 of 1",
        "recovering": "Recovering — requeued, waiting for nodes",
        "verifying": "Verifying — attempt 2 of 2, step 6,079",
        "stopped": "Stopped, needs you — The program ended with an error, step 12,880",
        "finished": "Finished — step 15,000 in 16 h 00 min, 1 restart",
        "cancelled": "Cancelled — at step 2,140",
    }
    for state, sentence in said.items():
        assert sentence in page(ada, f"/jobs/{story.others[state].run_id}")


def test_hostile_names_evidence_and_logs_are_only_text(ada: Client, story: Story) -> None:
    hostile = story.others["cancelled"]
    for address in (PAGE, f"{PAGE}/live", f"/jobs/{hostile.run_id}", "/", "/live/jobs"):
        text = ada.get(address).text
        assert "<script>alert" not in text and "<img src=x" not in text and "<b>stuck" not in text
        assert "\x1b" not in text
    assert rows.HOSTILE in page(ada, f"/jobs/{hostile.run_id}")
    assert "error <img src=x onerror=alert(1)>" in page(ada)


def test_a_job_that_nobody_has_heard_of_yet_opens(ada: Client, story: Story) -> None:
    rows.job(story.cluster, "tj-aaaaaaaaaaaa", name="", state="queued", state_at=rows.NOW, created_at=rows.NOW)
    words = page(ada, "/jobs/tj-aaaaaaaaaaaa")
    assert "No attempt has begun." in words and "No checkpoint is committed." in words


def test_strange_rows_do_not_break_the_page(ada: Client, story: Story) -> None:
    """What agents sent is stored as it came: the page shows what it can."""
    story.incident.actions.update(log=["text", {"at": "x"}, {}, 3])
    Recovery.objects.update(stamps={"fault": 3, "odd": {"at": "never"}, "detected": None})
    third = story.attempts[2]
    third.agents.update(ranks=[{"rank": None}, "text", {"step": "x", "progress_age_s": True}, {"state": "exited"}])
    Attempt.objects.filter(pk=third.pk).update(
        log_tail={"x": ["a", 1], "0": None},
        checks={"0": {"replay": {"checks": [1, {"name": None}]}}},
        nodes=["bad name!", 3],
    )
    assert ada.get(PAGE).status_code == 200
    assert ada.get(f"{PAGE}/curve.json").status_code == 200


def test_the_live_part_says_when_nothing_changed(ada: Client, story: Story) -> None:
    first = ada.get(f"{PAGE}/live")
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    same = ada.get(f"{PAGE}/live", headers={"If-None-Match": f'W/"x", W/{tag}'})
    assert same.status_code == 304 and same.content == b"" and same.headers["ETag"] == tag
    story.main.step = 965
    story.main.save()
    changed = ada.get(f"{PAGE}/live", headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.headers["ETag"] != tag


def test_the_live_part_has_every_block_of_the_page(ada: Client, story: Story) -> None:
    """A block that the page has and the refresh lacks would stand still for ever."""

    def blocks(html: str) -> set[str]:
        return {part.split('"')[0] for part in html.split('id="')[1:] if " data-live" in part.split(">")[0]}

    for whole, live in (
        (PAGE, f"{PAGE}/live"),
        ("/", "/live/jobs"),
        ("/nodes", "/live/nodes"),
        ("/incidents", "/live/incidents"),
    ):
        assert blocks(ada.get(whole).text) == blocks(ada.get(live).text) != set()


def test_the_number_of_queries_does_not_grow(
    ada: Client, story: Story, django_assert_max_num_queries: Callable[..., object]
) -> None:
    for k in range(20):
        made = rows.attempt(story.main, 4 + k, rows.NOW - timedelta(minutes=40 - k), start_step=900, step=950)
        incident = story.incident_of(made, rows.NOW, f"Node lost: n{k}", f"n{k}", "why")
        rows.evidence(incident, rows.NOW, ("slurm", "accuses", "line", 1.0))
        Recovery.objects.create(incident=incident, training_job=story.main, from_attempt=made)
    with django_assert_max_num_queries(24):  # type: ignore[attr-defined]
        ada.get(PAGE)


def test_a_silent_slurm_is_said_on_every_page(ada: Client, story: Story) -> None:
    """The story's clock is long ago for the server: its Slurm has not answered since."""
    for address in (PAGE, "/", "/nodes", "/incidents"):
        assert "has not answered since" in page(ada, address)
    from controller.clock import utcnow

    story.cluster.view_at = utcnow()
    story.cluster.save()
    assert "has not answered" not in page(ada)
