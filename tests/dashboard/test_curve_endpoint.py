"""`/jobs/<run id>/curve.json`: valid JSON whatever was measured, the range cut first, 304 while nothing is new."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from controller.models import MetricChunk, Recovery, TrainingJob
from tests.dashboard import rows
from tests.dashboard.story import Story

pytestmark = pytest.mark.db

BEGIN = rows.NOW - timedelta(hours=2)


@pytest.fixture
def ada(sign_in: Callable[..., Client]) -> Client:
    return sign_in("ada")


@pytest.fixture
def job(db: None) -> TrainingJob:
    return rows.job(rows.cluster(), "tj-00000000c0de", step=200, step_at=rows.NOW)


def ask(client: Client, **query: Any) -> dict[str, Any]:
    answer = client.get("/jobs/tj-00000000c0de/curve.json", query)
    assert answer.status_code == 200

    def never(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return json.loads(answer.text, parse_constant=never)  # type: ignore[no-any-return]


def traces(found: dict[str, Any]) -> list[tuple[int, bool, int, int]]:
    return [(t["attempt"], t["kept"], t["steps"][0], t["steps"][-1]) for t in found["traces"]]


def test_two_attempts_with_their_mark_and_close_up(ada: Client, job: TrainingJob) -> None:
    one = rows.attempt(job, 1, BEGIN, step=150, state="ended", outcome="node_lost", outcome_reason="Node lost: gpu1")
    two = rows.attempt(job, 2, BEGIN + timedelta(hours=1), start_step=100, step=200)
    rows.points(one, 0, 150, BEGIN, 1.0)
    rows.points(two, 101, 200, BEGIN + timedelta(hours=1), 1.0)
    found = ask(ada)
    assert traces(found) == [(1, True, 0, 100), (1, False, 101, 150), (2, True, 101, 200)]
    (mark,) = found["restarts"]
    assert (mark["attempt"], mark["at"], mark["fault_step"], mark["repeated"]) == (2, 100, 150, 50)
    assert mark["cause"] == "Node lost: gpu1" and mark["gpu_hours"] is None
    (near,) = found["close_ups"]
    assert (near["first"], near["last"]) == (70, 180)
    assert near["old"][0][0] == 70 and near["old"][-1][0] == 150
    assert near["new"][0][0] == 101 and near["new"][-1][0] == 180
    assert found["latest"] == {"attempt": 2, "step": 200, "value": rows.loss(200)}


def test_the_mark_carries_what_the_recovery_cost(ada: Client, db: None) -> None:
    story = Story(scale=0.02)
    found = json.loads(ada.get(f"/jobs/{story.main.run_id}/curve.json").text)
    first, second = found["restarts"]
    assert first["cause"] == "Node lost: gpu-0417" and first["gpu_hours"] == 83.7
    assert second["repeated"] == 5 and second["incident"] == story.incident.pk
    total = Recovery.objects.get(incident=story.incident).stamps
    rto = total["first_new_step"]["at"] - total["fault"]["at"]
    assert abs(second["to_new_step_s"] - rto) <= 0.1


def test_what_is_not_finite_is_null_and_listed(ada: Client, job: TrainingJob) -> None:
    """D07, stored as agents send it."""
    one = rows.attempt(job, 1, BEGIN)
    rows.points(one, 1, 4, BEGIN, 1.0, odd={2: "NaN", 3: "Infinity", 4: "-Infinity"})
    found = ask(ada)
    assert found["traces"][0]["y"] == [rows.loss(1), None, None, None]
    assert [(n["step"], n["kind"]) for n in found["not_finite"]] == [
        (2, "not a number"),
        (3, "infinity"),
        (4, "minus infinity"),
    ]
    assert found["latest"]["step"] == 1 and found["not_finite_total"] == 3


def test_the_range_is_cut_before_it_is_reduced(ada: Client, job: TrainingJob) -> None:
    """D05: zoomed in, every single point is there; the whole has one for each bin."""
    one = rows.attempt(job, 1, BEGIN)
    rows.points(one, 1, 5000, BEGIN, 0.1)
    whole, part = ask(ada), ask(ada, **{"from": 1600, "to": 1650})
    assert whole["width"] == 10 and len(whole["traces"][0]["steps"]) <= 1003
    assert part["width"] == 1
    assert part["traces"][0]["steps"] == list(range(1600, 1651))
    assert part["traces"][0]["y"] == [rows.loss(s) for s in range(1600, 1651)]


def test_what_is_cut_still_knows_who_took_over(ada: Client, job: TrainingJob) -> None:
    one, two = rows.attempt(job, 1, BEGIN), rows.attempt(job, 2, BEGIN, start_step=100)
    rows.points(one, 1, 150, BEGIN, 1.0)
    rows.points(two, 101, 110, BEGIN, 1.0)
    assert traces(ask(ada, **{"from": 120, "to": 140})) == [(1, False, 120, 140)]


def test_late_lower_steps_are_drawn_in_their_place(ada: Client, job: TrainingJob) -> None:
    """D03: a chunk of the old attempt that arrives after the new one's changes only the tail."""
    one, two = rows.attempt(job, 1, BEGIN), rows.attempt(job, 2, BEGIN, start_step=100)
    rows.points(one, 1, 120, BEGIN, 1.0)
    rows.points(two, 101, 130, BEGIN, 1.0)
    before = ask(ada)
    rows.points(one, 121, 140, BEGIN, 1.0)
    after = ask(ada)
    kept = [t for t in before["traces"] if t["kept"]]
    assert [t for t in after["traces"] if t["kept"]] == kept
    assert traces(after)[1] == (1, False, 101, 140)


def test_it_answers_304_until_something_is_new(ada: Client, job: TrainingJob) -> None:
    one = rows.attempt(job, 1, BEGIN)
    rows.points(one, 1, 10, BEGIN, 1.0)
    address = "/jobs/tj-00000000c0de/curve.json"
    tag = ada.get(address).headers["ETag"]
    assert ada.get(address, headers={"If-None-Match": tag}).status_code == 304
    assert ada.get(f"{address}?from=3", headers={"If-None-Match": tag}).status_code == 200
    rows.points(one, 11, 12, BEGIN, 1.0)
    assert ada.get(address, headers={"If-None-Match": tag}).status_code == 200
    assert ask(ada)["latest"]["step"] == 12


def test_a_chunk_that_commits_late_with_an_older_id_is_not_missed(ada: Client, job: TrainingJob) -> None:
    """Two transactions may commit in the other order than their ids: the cache must see the older one too."""
    one = rows.attempt(job, 1, BEGIN)
    rows.points(one, 1, 30, BEGIN, 1.0, chunk=10)
    late = MetricChunk.objects.get(first_step=11)
    MetricChunk.objects.filter(pk=late.pk).delete()
    assert 15 not in ask(ada)["traces"][0]["steps"]
    late.save(force_insert=True)
    assert 15 in ask(ada)["traces"][0]["steps"]


def test_other_metrics_and_ranks_can_be_asked_for(ada: Client, job: TrainingJob) -> None:
    one = rows.attempt(job, 1, BEGIN)
    rows.points(one, 1, 5, BEGIN, 1.0)
    rows.points(one, 1, 9, BEGIN, 1.0, name="grad<norm>", rank=3)
    found = ask(ada, name="grad<norm>", rank=3)
    assert found["traces"][0]["steps"][-1] == 9
    assert {"name": "grad<norm>", "rank": 3} in found["choices"]
    assert ask(ada, name="absent")["traces"] == []


@pytest.mark.parametrize("query", ["rank=-1", "rank=x", "from=9e9", "to=99999999999999999999999", "from=٣", "name=%00"])
def test_what_cannot_be_read_is_left_out(ada: Client, job: TrainingJob, query: str) -> None:
    rows.points(rows.attempt(job, 1, BEGIN), 1, 5, BEGIN, 1.0)
    assert ada.get(f"/jobs/tj-00000000c0de/curve.json?{query}").status_code == 200


def test_a_job_without_points_has_an_empty_curve(ada: Client, job: TrainingJob) -> None:
    found = ask(ada)
    assert found["traces"] == [] and found["latest"] is None and found["restarts"] == []
