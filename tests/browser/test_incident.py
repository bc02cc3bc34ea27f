"""The lanes of an incident in a real browser: sound at every width, read by keys and pointer, no mark over another."""

import json
from datetime import timedelta
from itertools import pairwise

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.conftest import Reader, until
from tests.browser.test_pages import AXE
from tests.dashboard import signs
from tests.dashboard.story import Story

pytestmark = pytest.mark.browser

# Boxes of the numbered marks, by the lane that they stand in.
BOXES = """[...document.querySelectorAll('.lanes .sign')].map(m => {
  const b = m.getBoundingClientRect(); return [Math.round(b.y + b.height / 2), b.x, b.right]; })"""


@pytest.fixture
def told(story: Story) -> Story:
    story.incident.evidence.all().delete()
    story.incident.assessment = {"withheld": ["gpu-0422"], "follow_up": ["pairwise link check"]}
    story.incident.save()
    signs.typical(story.incident, story.incident.fault_at)
    return story


def opened(reader: Reader, story: Story, *, width: int = 1440, theme: str = "light") -> Page:
    page = reader.open(f"/incidents/{story.incident.pk}", width=width, theme=theme)
    page.wait_for_selector(".lanes svg")
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_sound(reader: Reader, told: Story, theme: str) -> None:
    for width in (1440, 1024, 721, 720, 360):
        page = opened(reader, told, width=width, theme=theme)
        for summary in page.locator("main details > summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('.lanes svg').getBoundingClientRect().right") <= width
        found = Axe().run(page, options=AXE).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert serious == [], json.dumps(serious, indent=1)[:4000]
        page.close()
    reader.seen.nothing_wrong()


def test_the_read_out_follows_the_arrow_keys(reader: Reader, told: Story) -> None:
    page = opened(reader, told)
    page.focus(".lanes")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".read").startswith("1 of 21. 1: −7 d, Node")
    page.keyboard.press("End")
    assert page.inner_text(".read").startswith("21 of 21. 9: +3.1 s, Progress")
    assert page.locator(".proof li.here b").inner_text() == "9"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".read").startswith("20 of 21.")
    page.keyboard.press("Escape")
    assert page.inner_text(".read") == "Point at a mark, or use the arrow keys."
    assert page.locator(".proof li.here").count() == 0
    reader.seen.nothing_wrong()


def test_the_read_out_follows_the_pointer(reader: Reader, told: Story) -> None:
    page = opened(reader, told)
    page.hover(".lanes .signno.clears >> nth=0")
    assert "clears something" in page.inner_text(".read")
    page.hover("h1")
    assert page.inner_text(".read") == "Point at a mark, or use the arrow keys."


def test_what_was_read_stays_read_when_more_evidence_comes(reader: Reader, told: Story) -> None:
    page = opened(reader, told)
    page.focus(".lanes")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    before = page.inner_text(".read").partition(". ")[2]
    signs.sign(told.incident, 60, told.incident.fault_at, 3.3, late=True, raw="a late line").save()
    with page.expect_response(lambda r: "live" in r.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    until(page, "document.body.textContent.includes('a late line')")
    assert page.evaluate("document.activeElement.className") == "lanes"
    assert page.inner_text(".read").partition(". ")[2] == before
    reader.seen.nothing_wrong()


@pytest.mark.parametrize("width", [1440, 360])
def test_two_hundred_marks_do_not_cover_each_other(reader: Reader, story: Story, width: int) -> None:
    story.incident.evidence.all().delete()
    signs.two_hundred(story.incident, story.incident.fault_at)
    page = opened(reader, story, width=width)
    lanes: dict[int, list[tuple[float, float]]] = {}
    for y, left, right in page.evaluate(BOXES):
        lanes.setdefault(y, []).append((left, right))
    assert len(lanes) == 8
    for boxes in lanes.values():
        boxes.sort()
        # A diamond is a little wider than its place: its corners may touch those of its neighbour.
        assert all(b[0] - a[1] > -4 for a, b in pairwise(boxes)), boxes
    page.focus(".lanes")
    page.keyboard.press("End")
    assert page.inner_text(".read").startswith("200 of 200.")


def test_one_mark_has_its_place(reader: Reader, story: Story) -> None:
    story.incident.evidence.all().delete()
    signs.sign(story.incident, 1, story.incident.fault_at, 0.0).save()
    story.incident.detected_at = story.incident.fault_at + timedelta(hours=9)
    story.incident.save()
    page = opened(reader, story, width=360)
    assert page.locator(".lanes .sign").count() == 1
    assert "0 h" in (page.text_content(".lanes svg") or "")
    reader.seen.nothing_wrong()
