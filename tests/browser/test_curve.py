"""The curve as it is drawn: its lines, its tails, its read-out, its zoom, and that it neither flickers nor forgets."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.sync_api import Page

from controller.models import TrainingJob
from tests.browser.conftest import Reader, until
from tests.dashboard import rows
from tests.dashboard.story import Story

pytestmark = pytest.mark.browser

JOB = "/jobs/tj-4f2a9c0b11de"
Drawn = Callable[[Page], Page]
LINE_DATA = "document.getElementById('loss').data.filter(t => t.meta?.line)"
LINES = f"{LINE_DATA}.map(t => [t.meta.attempt, t.meta.kept])"


def read(page: Page) -> str:
    return page.inner_text("#read")


def test_each_attempt_has_its_line_its_tail_and_its_mark(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    assert page.evaluate(LINES) == [[1, True], [2, True], [3, True], [1, False], [2, False]]
    shapes = page.evaluate("document.getElementById('loss').layout.shapes.map(s => s.type)")
    assert shapes == ["rect", "line", "circle"] * 2
    texts = page.evaluate("document.getElementById('loss').layout.annotations.map(a => a.text)")
    assert {"2", "3", "Node lost: gpu-0417", "Node lost: gpu-0422"} <= set(texts)
    assert page.locator("#restarts li").count() == 2
    assert page.locator("#restarts svg").count() == 2
    assert "is not a number" in page.inner_text("#curve-said") and "3 attempts" in page.inner_text("#curve-said")
    reader.seen.nothing_wrong()


def test_the_kept_line_never_runs_back(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    kept = page.evaluate(
        "document.getElementById('loss').data.filter(t => t.meta?.line && t.meta.kept).map(t => [...t.x])"
    )
    joined = [x for line in kept for x in line]
    assert joined == sorted(joined)


def test_tails_can_be_hidden(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    page.click("#tails button:has-text('Hide')")
    assert page.evaluate(LINES) == [[1, True], [2, True], [3, True]]
    page.click("#tails button:has-text('Show')")
    assert len(page.evaluate(LINES)) == 5
    reader.seen.nothing_wrong()


def test_the_axis_may_be_the_clock(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    page.click("#xaxis button:has-text('Wall clock')")
    until(page, "document.getElementById('loss').layout.xaxis.type === 'date'")
    kept = page.evaluate(
        "document.getElementById('loss').data.filter(t => t.meta?.line && t.meta.kept).map(t => [...t.x])"
    )
    assert kept[0][-1] < kept[1][0] < kept[1][-1] < kept[2][0]
    reader.seen.nothing_wrong()


def test_arrow_keys_move_the_read_out(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    last = read(page)
    assert "attempt 3, rank 0" in last
    page.focus("#loss")
    page.keyboard.press("Home")
    assert "at step 1, attempt 1" in read(page)
    page.keyboard.press("ArrowRight")
    assert "at step 1," not in read(page) and "attempt 1" in read(page)
    page.keyboard.press("Escape")
    assert read(page) == last
    reader.seen.nothing_wrong()


def test_the_pointer_moves_the_read_out(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    page.locator("#loss").scroll_into_view_if_needed()
    box = page.locator("#loss").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 200)
    until(page, "document.getElementById('read').textContent.includes('attempt 1')")
    page.mouse.move(5, 5)
    until(page, "document.getElementById('read').textContent.includes('attempt 3')")
    reader.seen.nothing_wrong()


def test_a_zoom_asks_for_more_detail_and_a_refresh_leaves_it(reader: Reader, curve: Drawn, story: Story) -> None:
    page = curve(reader.open(JOB))
    page.locator("#loss").scroll_into_view_if_needed()
    box = page.locator("#loss .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.60, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.65, box["y"] + 110, steps=6)
    page.mouse.up()
    page.wait_for_selector("#whole:not([hidden])")
    low, high = page.evaluate("document.getElementById('loss').layout.xaxis.range")
    assert 2800 < low < high < 3500
    until(page, f"{LINE_DATA}.length === 1 && {LINE_DATA}[0].customdata.every(s => s >= {low} - 1 && s <= {high} + 1)")
    story.main.step_at += timedelta(seconds=4)
    story.main.save()
    with page.expect_response(lambda r: "/live" in r.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.evaluate("document.dispatchEvent(new CustomEvent('relume:tick'))")
    shown = page.evaluate("document.getElementById('loss').layout.xaxis.range")
    assert abs(shown[0] - low) < 1.5 and abs(shown[1] - high) < 1.5
    page.click("#whole")
    until(page, "document.getElementById('loss').layout.xaxis.range[1] > 4000")
    assert page.locator("#whole").is_hidden()
    reader.seen.nothing_wrong()


def test_new_points_are_appended_to_the_same_picture(reader: Reader, curve: Drawn, story: Story) -> None:
    """The drawing is changed, not made again: what does not flicker is the same element."""
    page = curve(reader.open(JOB))
    page.evaluate("window.before = document.querySelector('#loss .main-svg')")
    third = story.attempts[2]
    rows.points(third, 4830, 4840, story.now, 1.0)
    page.evaluate("document.dispatchEvent(new CustomEvent('relume:tick'))")
    until(page, "document.getElementById('read').textContent.includes('step 4,840')")
    assert page.evaluate("window.before === document.querySelector('#loss .main-svg')")
    reader.seen.nothing_wrong()


def test_the_colours_follow_the_theme(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB, theme="light"))
    colour = "document.getElementById('loss').data.find(t => t.meta?.line).line.color"
    assert page.evaluate(colour) == "rgb(11, 105, 181)"
    page.emulate_media(color_scheme="dark")
    until(page, f"{colour} === 'rgb(98, 177, 245)'")
    page.click("#theme")
    until(page, f"{colour} === 'rgb(11, 105, 181)'")
    reader.seen.nothing_wrong()


def test_the_table_says_what_the_picture_shows(reader: Reader, curve: Drawn) -> None:
    page = curve(reader.open(JOB))
    page.click("summary:has-text('The curve as a table')")
    words = page.inner_text("#curve-table")
    assert "not a number" in words and "Latest" in words
    assert "Attempt 3 resumes here: Node lost: gpu-0422" in words


def test_a_curve_without_points_says_so(reader: Reader, story: Story) -> None:
    page = reader.open(f"/jobs/{story.others['queued'].run_id}")
    page.wait_for_selector("#loss .wait")
    assert read(page) == "no step yet"
    reader.seen.nothing_wrong()


def test_hostile_causes_and_metric_names_are_only_text(reader: Reader, curve: Drawn, story: Story) -> None:
    hostile = "<b>bold</b><a href='javascript:window.hit=1'>x</a><script>window.hit=1</script>"
    story.incident.summary = hostile
    story.incident.save()
    rows.points(story.attempts[2], 4551, 4600, story.now, 1.0, name="<img src=x onerror='window.hit=1'>")
    TrainingJob.objects.filter(pk=story.main.pk).update(name=hostile)
    page = curve(reader.open(JOB))
    assert page.evaluate("window.hit === undefined")
    assert page.locator("#loss a, #loss b, #loss img").count() == 0
    assert page.locator("#restarts li:has-text('<script>')").count() == 1
    page.select_option("#metric", index=0)
    until(page, "document.getElementById('curve-title').textContent.includes('<img')")
    assert page.evaluate("window.hit === undefined")
    reader.seen.nothing_wrong()
