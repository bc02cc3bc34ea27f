"""A world for each scenario, and how far a test may let it go before its own story begins."""

import pytest

from controller.models import Incident
from tests.scenarios.world import World


@pytest.fixture
def world(db: None) -> World:
    return World()


def decided(world: World) -> None:
    """gpu2 is lost, and nothing has been done yet."""
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
