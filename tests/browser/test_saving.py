"""The job page's "Save now": a button in the live part that sends a form outside of it."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from controller.models import TrainingJob
from tests.browser.conftest import Reader, until
from tests.dashboard.test_saving import SAVING

pytestmark = pytest.mark.browser
RUN = "tj-4f2a9c0b11de"


def test_a_save_is_asked_for_with_one_click(reader: Reader, curve: Callable[[Page], Page]) -> None:
    TrainingJob.objects.filter(run_id=RUN).update(saving=SAVING)
    page = reader.open(f"/jobs/{RUN}")
    curve(page)
    assert "of the time is expected to be lost" in page.inner_text("#checkpoints")
    page.click("text=Save now")
    until(page, "document.querySelector('#checkpoints').innerText.includes('a save was asked for')")
    assert TrainingJob.objects.get(run_id=RUN).save_asked_at is not None
    reader.seen.nothing_wrong()
