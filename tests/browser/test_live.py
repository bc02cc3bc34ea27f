"""The refresh: only what changed is exchanged, and what the reader was doing survives it."""

from datetime import timedelta

import pytest
from playwright.sync_api import Page

from controller.models import Cluster
from tests.browser.conftest import Reader, until
from tests.dashboard.story import Story

pytestmark = pytest.mark.browser

JOB = "/jobs/tj-4f2a9c0b11de"


def ask_now(page: Page) -> int:
    """Makes the page ask at once, as it does when its tab is looked at again; the status of the answer."""
    with page.expect_response(lambda r: "live" in r.url) as answer:
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    return answer.value.status


def test_an_unchanged_page_is_answered_with_304_and_left_alone(reader: Reader, story: Story) -> None:
    page = reader.open(JOB)
    ask_now(page)
    page.evaluate("window.head = document.getElementById('head')")
    assert ask_now(page) == 304
    assert page.evaluate("window.head === document.getElementById('head')")
    reader.seen.nothing_wrong()


def test_what_changed_is_exchanged_and_nothing_else(reader: Reader, story: Story) -> None:
    page = reader.open(JOB)
    page.evaluate("window.log = document.getElementById('log')")
    story.main.state, story.main.step, story.main.ended_at = "finished", 12000, story.now
    story.main.save()
    assert ask_now(page) == 200
    until(page, "document.querySelector('h1').textContent.includes('Finished')")
    assert page.title().startswith("Finished, step 12,000")
    assert page.evaluate("window.log === document.getElementById('log')")
    reader.seen.nothing_wrong()


def test_focus_scroll_and_open_details_survive(reader: Reader, story: Story) -> None:
    page = reader.open(JOB, width=720)
    page.wait_for_selector("#loss[data-traces] .main-svg")
    details = page.locator("#incidents details").first
    details.locator("summary").click()
    page.locator("#incidents summary").nth(1).focus()
    page.evaluate("document.querySelector('#log .log').scrollTop = 7")
    page.evaluate(
        "window.old = document.getElementById('incidents');"
        "window.at = document.activeElement.getBoundingClientRect().top"
    )
    story.incident.reason = "another reason"
    story.incident.save()
    story.attempts[2].log_tail = {"0": "x\n" * 100 + "the end"}
    story.attempts[2].save()
    ask_now(page)
    until(page, "window.old !== document.getElementById('incidents')")
    assert page.locator("#incidents details").first.evaluate("d => d.open")
    assert page.evaluate("[...document.querySelectorAll('#incidents summary')].indexOf(document.activeElement)") == 1
    assert abs(page.evaluate("document.activeElement.getBoundingClientRect().top - window.at")) < 40
    reader.seen.nothing_wrong()


def test_a_selected_text_is_not_taken_away(reader: Reader, story: Story) -> None:
    page = reader.open(JOB)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.crumb'))")
    story.main.step = 4899
    story.main.save()
    ask_now(page)
    page.wait_for_timeout(200)
    assert "4,899" not in page.inner_text("h1")
    page.evaluate("getSelection().removeAllRanges()")
    story.main.step = 4900
    story.main.save()
    ask_now(page)
    until(page, "document.querySelector('h1').textContent.includes('4,900')")


def test_paused_means_paused(reader: Reader, story: Story) -> None:
    page = reader.open("/")
    page.keyboard.press("p")
    assert page.inner_text("#live").startswith("Paused")
    asked: list[str] = []
    # What the page itself asks for; the browser fetches the icon by itself, and sometimes only now.
    page.on("request", lambda r: asked.append(r.url) if r.resource_type in ("fetch", "xhr") else None)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(300)
    assert asked == []
    with page.expect_response(lambda r: "live" in r.url):
        page.keyboard.press("p")
    assert page.inner_text("#live").startswith("Live")
    reader.seen.nothing_wrong()


def test_a_slurm_that_stops_answering_is_said_without_a_reload(reader: Reader, story: Story) -> None:
    page = reader.open("/nodes")
    assert page.locator("#stale .stale").count() == 0
    Cluster.objects.update(view_at=story.now - timedelta(minutes=3))
    ask_now(page)
    page.wait_for_selector("#stale .stale")
    assert "nothing is held or requeued until Slurm answers" in page.inner_text("#stale")
    reader.seen.nothing_wrong()


def test_a_controller_that_does_not_answer_is_said(reader: Reader, story: Story) -> None:
    reader.seen.expected = ("Failed to load resource",)
    page = reader.open("/")
    page.clock.install()
    page.reload()
    page.route("**/live/**", lambda route: route.abort())
    page.clock.run_for(40_000)
    page.wait_for_selector("#unheard:not([hidden])")
    assert "Relume has not answered since" in page.inner_text("#unheard")
    assert page.inner_text("#live").startswith("Not live")
    page.unroute("**/live/**")
    page.clock.run_for(16_000)
    page.wait_for_selector("#unheard", state="hidden")
    reader.seen.nothing_wrong()


def test_ages_are_counted_here(reader: Reader, story: Story) -> None:
    page = reader.open("/")
    page.clock.install()
    page.reload()
    age = "tr:has-text('mosaic-7b-pretrain') time[data-age]"
    until(page, '/ ago|now/.test(document.querySelector("tr:nth-child(2) time[data-age]").textContent)')
    assert "UTC" in (page.locator(age).get_attribute("title") or "")
    reader.seen.nothing_wrong()
