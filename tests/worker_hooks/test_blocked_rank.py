"""A real rank that stops in Python while its peer waits in a collective: what the agent's messages show of it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.agent_stage import Stage, stage, until
from worker_hooks.protocol.messages import decode_message

pytestmark = pytest.mark.torch
BLOCKED = Path(__file__).with_name("programs") / "blocked.py"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def standing(run: Stage) -> list[Any] | None:
    """The ranks of the newest message once both have stood still for three seconds behind their first steps."""
    if not run.controller.messages:
        return None
    ranks = decode_message(run.controller.messages[-1]).ranks
    stopped = all(rank.step and (rank.progress_age_s or 0.0) > 3.0 for rank in ranks)
    return list(ranks) if len(ranks) == 2 and stopped else None


@pytest.mark.parametrize("how", ["sleep", "lock", "gil"])
def test_the_rank_that_stopped_is_a_step_behind(run: Stage, how: str) -> None:
    run.start("--ranks", "2", program=(sys.executable, str(BLOCKED), how))
    waiting, blocked = until(lambda: standing(run), 60.0)
    assert (waiting.step, blocked.step) == (5, 4)
    assert waiting.phase == blocked.phase == "training"
    assert waiting.beat_age_s < 2.0, "a wait in a collective lets other threads run"
    assert (blocked.beat_age_s > 2.0) == (how == "gil")
    assert waiting.pace is not None and waiting.pace.phase_age_s is not None
