"""A real Chromium without a window, a live server, and a page that remembers what went wrong on it.

Playwright's synchronous interface runs a loop in this thread, so Django's check against blocking calls in a loop is off
here; the rows are written before a page is opened.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from controller.clock import utcnow
from controller.queries import series
from tests.dashboard import rows
from tests.dashboard.story import Story

CHROMIUM = "/usr/bin/chromium"


@dataclass
class Seen:
    """What a page must never have: an error on its console, a broken script, a request to somewhere else."""

    server: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def watch(self, page: Page) -> None:
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(self.server) else self.elsewhere.append(r.url))

    def nothing_wrong(self) -> None:
        wrong = [e for e in self.errors if not any(word in e for word in self.expected)]
        assert wrong == [] and self.elsewhere == []


def until(page: Page, expression: str) -> None:
    """Waits up to 10 s until the expression holds. Playwright's own wait compiles text on the page, which the content
    policy refuses, rightly."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {expression}")


@pytest.fixture(scope="session")
def _async_unsafe() -> Iterator[None]:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    yield
    os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE")


@pytest.fixture(scope="session")
def playwright(_async_unsafe: None) -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    assert Path(CHROMIUM).exists(), "no Chromium: sh deploy/setup/packages.sh browser"
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield browser
    browser.close()


@pytest.fixture
def story(_async_unsafe: None, transactional_db: None) -> Story:
    """Told of this very minute, so that nothing on the page is stale."""
    series.forget_all()
    made = Story(now=utcnow(), scale=0.1)
    rows.user("ada")
    return made


@dataclass
class Reader:
    """`open("/", width=360, theme="dark")`: a signed-in page of ada's; `seen` collects what went wrong on it."""

    browser: Browser
    server: str
    cookie: str
    seen: Seen

    def open(self, address: str, *, width: int = 1440, theme: str = "light", signed_in: bool = True) -> Page:
        look = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        look.set_default_timeout(15_000)
        if signed_in:
            look.add_cookies([{"name": "sessionid", "value": self.cookie, "url": self.server}])
        page = look.new_page()
        self.seen.watch(page)
        page.goto(self.server + address)
        return page


@pytest.fixture
def reader(chromium: Browser, live_server: "object", story: Story) -> Iterator[Reader]:
    client = Client()
    from django.contrib.auth.models import User

    client.force_login(User.objects.get(username="ada"))
    server = str(live_server)
    yield Reader(chromium, server, client.cookies["sessionid"].value, Seen(server))
    for look in chromium.contexts:
        look.close()


@pytest.fixture
def curve() -> Callable[[Page], Page]:
    """Waits until the curve of a page is drawn."""

    def drawn(page: Page) -> Page:
        page.wait_for_selector("#loss[data-traces] .main-svg")
        return page

    return drawn
