import pytest

from tests.scenarios.world import World


@pytest.fixture
def world(db: None) -> World:
    return World()
