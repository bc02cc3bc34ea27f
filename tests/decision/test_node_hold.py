"""What Slurm's view of a held node means for the hold."""

import pytest

from controller.decision.node_hold import HeldNode, follow_hold, release_refusal, sticky
from tests.decision.quiet import NOW

pytestmark = pytest.mark.pure

OUT_EMPTY = HeldNode(out=True, down=False, empty=True)
OUT_BUSY = HeldNode(out=True, down=False, empty=False, jobs=("88",))
DOWN = HeldNode(out=False, down=True, empty=True)
BACK = HeldNode(out=False, down=False, empty=True)
REBOOTED = HeldNode(out=False, down=False, empty=True, rebooted=True)


def event(state: str, node: HeldNode, *, adopted: bool = False, is_sticky: bool = False) -> str | None:
    said = follow_hold(state, node, adopted=adopted, is_sticky=is_sticky)
    assert said is None or said[1], "never without a reason"
    return None if said is None else said[0]


@pytest.mark.parametrize(
    ("state", "node", "expected"),
    [
        ("draining", OUT_BUSY, None),
        ("draining", OUT_EMPTY, "drained"),
        ("drained", OUT_EMPTY, None),
        ("drained", OUT_BUSY, "jobs_returned"),
        ("draining", DOWN, "drained"),
        ("drained", DOWN, None),
        ("drained", BACK, "release"),
        ("draining", BACK, "release"),
        ("drained", REBOOTED, "return"),
        ("draining", REBOOTED, "return"),
        ("returned", REBOOTED, None),
        ("returned", BACK, None),
        ("returned", OUT_BUSY, "out_again"),
        ("returned", DOWN, "out_again"),
    ],
)
def test_follow(state: str, node: HeldNode, expected: str | None) -> None:
    assert event(state, node) == expected


def test_somebody_elses_drain_is_theirs_to_clear() -> None:
    assert event("drained", REBOOTED, adopted=True) == "release"


@pytest.mark.parametrize("node", [BACK, REBOOTED])
@pytest.mark.parametrize("adopted", [True, False])
def test_a_sticky_hold_is_not_released_by_what_slurm_shows(node: HeldNode, adopted: bool) -> None:
    assert event("drained", node, adopted=adopted, is_sticky=True) == "return"
    assert release_refusal(is_sticky=True, by_person=False) is not None
    assert release_refusal(is_sticky=True, by_person=True) is None
    assert release_refusal(is_sticky=False, by_person=False) is None


@pytest.mark.parametrize(
    ("hours", "expected"), [((2, 1, 0), True), ((1, 0), False), ((25, 1, 0), False), ((24, 1, 0), True), ((), False)]
)
def test_three_drains_in_a_day_stick(hours: tuple[int, ...], expected: bool) -> None:
    assert sticky([NOW - 3600 * h for h in hours], NOW) is expected
