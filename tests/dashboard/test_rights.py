"""What the controller may not do in Slurm, where people see it: with the incident, and on the page of nodes."""

from collections.abc import Callable

import pytest
from django.test import Client

from controller.clock import aware
from controller.decision import rights
from controller.models import Cluster, Decision
from controller.notify.catalogue import incident_message
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db

NOTE = (
    "gpu-0417 not held: the controller may not drain nodes here; grant it with: sacctmgr …; this job stays away from it"
)


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


def test_what_was_left_out_is_told_with_the_incident_and_in_the_message(
    sign_in: Callable[..., Client], story: Story
) -> None:
    ada = sign_in("ada")
    page = f"/jobs/{story.main.run_id}"
    assert "may not drain" not in ada.get(page).text
    shared = {"at": aware(0.0), "policy_digest": "", "code_version": "", "outcome": "act", "reason": "lost"}
    for _ in range(2):
        Decision.objects.create(training_job=story.main, incident=story.incident, notes=[NOTE], **shared)
    assert Text(ada.get(page).text).words.count(NOTE) == 1
    assert incident_message(story.incident).done.count(NOTE) == 1


def test_the_page_of_nodes_says_which_rights_are_missing(sign_in: Callable[..., Client], story: Story) -> None:
    ada = sign_in("ada")
    assert "May not, in Slurm" not in ada.get("/nodes").text
    found = {rights.UPDATE_NODES: {"may": rights.NO}, rights.RESERVE: {"may": rights.UNKNOWN}}
    Cluster.objects.filter(pk=story.main.cluster_id).update(rights={"capabilities": found})
    assert (
        "May not, in Slurm drain and resume nodes check_slurm says what grants it" in Text(ada.get("/nodes").text).words
    )
