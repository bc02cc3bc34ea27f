"""Every page in both themes and at three widths: no error, no foreign request, accessible, nothing cut off."""

import json
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.conftest import Reader

pytestmark = pytest.mark.browser

JOB = "/jobs/tj-4f2a9c0b11de"
PAGES = {
    "login": "/login",
    "home": "/",
    "job": JOB,
    "nodes": "/nodes",
    "node": "/nodes/gpu-0422",
    "incidents": "/incidents",
}
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_every_page_is_sound(reader: Reader, curve: Callable[[Page], Page], width: int, theme: str) -> None:
    for name, address in PAGES.items():
        page = reader.open(address, width=width, theme=theme, signed_in=name != "login")
        if name == "job":
            curve(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        found = Axe().run(page, options=AXE).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert serious == [], name + json.dumps(serious, indent=1)[:4000]
        reader.seen.nothing_wrong()
        page.close()


def test_nothing_is_cut_off_between_the_two_layouts(reader: Reader, curve: Callable[[Page], Page]) -> None:
    for width in (720, 721, 1024):
        for name, address in PAGES.items():
            page = reader.open(address, width=width, signed_in=name != "login")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} at {width}"
            page.close()


def test_titles_are_distinct(reader: Reader) -> None:
    titles = [reader.open(address).title() for name, address in PAGES.items() if name != "login"]
    titles.append(reader.open("/login", signed_in=False).title())
    assert len(set(titles)) == len(titles) and all(title.endswith("Relume") for title in titles)


def test_the_theme_follows_the_system_until_it_is_chosen(reader: Reader) -> None:
    page = reader.open("/", theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Switch to the light theme").click()
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(14, 17, 20)", "rgb(247, 247, 245)")
    page.reload()
    assert page.evaluate(ground) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Switch to the dark theme").click()
    assert page.evaluate(ground) == dark
    reader.seen.nothing_wrong()


def test_the_skip_link_is_first_and_leads_to_the_content(reader: Reader) -> None:
    page = reader.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_keys_move_open_search_and_help(reader: Reader) -> None:
    page = reader.open("/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate("[...document.querySelectorAll('tr')].indexOf(document.querySelector('tr.here'))") == 1
    assert page.evaluate("document.activeElement.closest('tr').className") == "here"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("jgn?")
    assert page.input_value("#search") == "jgn?"
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert page.locator("#keys").evaluate("d => d.open")
    page.locator("#keys-on").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("n")
    assert page.url.endswith("/")
    page.evaluate("localStorage.removeItem('relume-keys')")
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url("**/nodes")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/gpu-0417")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(reader.server + "/")
    reader.seen.nothing_wrong()


def test_logging_in_with_the_form(reader: Reader) -> None:
    from django.contrib.auth.models import User

    user = User.objects.get(username="ada")
    user.set_password("a long enough password")
    user.save()
    page = reader.open(JOB, signed_in=False)
    page.get_by_label("User name").fill("ada")
    page.get_by_label("Password").fill("a long enough password")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**" + JOB)
    page.get_by_role("button", name="Sign out").first.click()
    page.wait_for_url("**/login")
    reader.seen.nothing_wrong()


def test_the_records_break_no_policy(reader: Reader) -> None:
    from django.contrib.auth.models import User

    User.objects.filter(username="ada").update(is_staff=True)
    for address in ("/admin/", "/admin/controller/nodehold/", "/admin/controller/incident/"):
        reader.open(address).wait_for_load_state("networkidle")
    reader.seen.nothing_wrong()
