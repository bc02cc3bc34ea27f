"""My training jobs: filters, order, paging, and a number of queries that does not grow."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from controller.clock import utcnow
from controller.models import TrainingJob
from controller.queries.sparks import sparks_of
from tests.dashboard import rows
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db


@pytest.fixture
def ada(sign_in: Callable[..., Client]) -> Client:
    return sign_in("ada")


def shown(html: str) -> list[str]:
    return re.findall(r'<tr id="row-(tj-[0-9a-f]{12})"', html)


def many(count: int, owner: str = "ada") -> list[str]:
    where = rows.cluster()
    states = ["training", "queued", "finished", "stopped", "recovering"]
    made = [
        TrainingJob(
            run_id=f"tj-{k:012x}",
            name=f"job-{k}",
            owner=owner,
            cluster=where,
            state=states[k % 5],
            state_at=rows.NOW,
            created_at=rows.NOW - timedelta(seconds=k // 3),
            step=100,
            step_at=rows.NOW,
        )
        for k in range(count)
    ]
    TrainingJob.objects.bulk_create(made)
    return [m.run_id for m in made]


def test_those_that_need_a_person_come_first_then_the_newest(ada: Client, db: None) -> None:
    Story(scale=0.02)
    html = ada.get("/").text
    found = shown(html)
    states = [TrainingJob.objects.get(run_id=r).state for r in found]
    assert states[0] == "stopped" and states.count("stopped") == 1
    ages = [TrainingJob.objects.get(run_id=r).created_at for r in found[1:]]
    assert ages == sorted(ages, reverse=True)
    words = Text(html).words
    assert "5 moving, 1 in the queue, 1 needs you, 2 ended" in words
    assert "Needs you sparse-moe-24b : The program ended with an error." in words


def test_paging_by_key_shows_every_job_once_whatever_is_added(ada: Client, db: None) -> None:
    expected = many(120)
    seen: list[str] = []
    address = "/"
    for turn in range(3):
        html = ada.get(address).text
        seen += shown(html)
        rows.job(TrainingJob.objects.first().cluster, f"tj-f{turn:011x}", created_at=utcnow())  # type: ignore[union-attr]
        older = re.search(r'href="(\?[^"]*older=[^"]*)" rel="next"', html)
        address = "/" + older[1].replace("&amp;", "&") if older else ""
    assert address == "" or not older
    assert len(seen) == len(set(seen)) == 120
    assert set(seen) == set(expected)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=needs", {"sparse-moe-24b"}),
        ("state=queued", {"code-1b-ablate-c"}),
        ("state=ended", {"reward-7b-v2", rows.HOSTILE}),
        ("q=ablate", {"code-1b-ablate-a", "code-1b-ablate-c"}),
        ("q=tj-4f2a9c0b11de", {"mosaic-7b-pretrain"}),
        ("q=771204", {"mosaic-7b-pretrain"}),
        ("q=ablate&state=queued", {"code-1b-ablate-c"}),
        ("q=%00%27%22--", set()),
    ],
)
def test_filters_are_in_the_query_string(ada: Client, db: None, query: str, names: set[str]) -> None:
    Story(scale=0.02)
    html = ada.get(f"/?{query}").text
    assert {TrainingJob.objects.get(run_id=r).name for r in shown(html)} == names
    assert f'data-live-from="/live/jobs?{query.replace("&", "&amp;")}"' in html or "%00" in query


def test_restarted_in_a_day(ada: Client, db: None) -> None:
    where = rows.cluster()
    now = utcnow()
    for name, ago in (("tj-000000000001", 3), ("tj-000000000002", 30)):
        made = rows.job(where, name, name=name, created_at=now - timedelta(hours=40))
        rows.attempt(made, 1, now - timedelta(hours=39))
        rows.attempt(made, 2, now - timedelta(hours=ago))
    assert shown(ada.get("/?restarted=24h").text) == ["tj-000000000001"]


@pytest.mark.parametrize("older", ["x", "1.2", "0.99999999999999999.1", "1..", "2.5.5", "1.-5.3", "'"])
def test_a_cursor_that_is_none_shows_the_first_page(ada: Client, db: None, older: str) -> None:
    many(3)
    assert ada.get("/", {"older": older}).status_code == 200


def test_empty_lists_say_why_and_the_next_thing(ada: Client, sign_in: Callable[..., Client], db: None) -> None:
    assert "relume sbatch train.sbatch" in Text(ada.get("/").text).words
    Story(scale=0.02)
    words = Text(ada.get("/?state=ended&q=nothing").text).words
    assert "None of your 9 training jobs is ended, named like “nothing”." in words


def test_two_thousand_jobs_cost_as_many_queries_as_one(
    ada: Client, db: None, django_assert_max_num_queries: Callable[..., object]
) -> None:
    many(2000)
    with django_assert_max_num_queries(17):  # type: ignore[attr-defined]
        html = ada.get("/").text
    assert len(shown(html)) == 50 and "50 of 2000" in Text(html).words


def test_a_job_set_far_back_reads_no_more_chunks_than_its_ranges(ada: Client, db: None) -> None:
    made = rows.job(rows.cluster(), "tj-000000000001", step=100, step_at=rows.NOW)
    rows.points(rows.attempt(made, 1, rows.NOW), 1, 4000, rows.NOW, 1.0, chunk=10)
    rows.points(rows.attempt(made, 2, rows.NOW, start_step=50), 51, 100, rows.NOW, 1.0, chunk=10)
    found = sparks_of([made], {made.pk: list(made.attempts.all())})[made.pk]
    assert [(n, line[0][0], line[-1][0] <= 100) for n, line in found.lines] == [(1, 1, True), (2, 51, True)]
    assert found.last_step == 100


def test_a_spark_line_shows_each_kept_part_and_each_restart(ada: Client, db: None) -> None:
    Story(scale=0.1)
    html = ada.get("/?q=tj-4f2a9c0b11de").text
    spark = html[html.index('<svg class="spark"') : html.index("</svg>", html.index('<svg class="spark"'))]
    assert spark.count('<path class="s') == 3 and spark.count('<path class="tick') == 2
    assert "2 restarts" in spark
