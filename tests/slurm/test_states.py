"""States beyond the given cases: sinfo's words, symbols and flags for one fact, bases that a flag hides."""

from __future__ import annotations

import pytest

from controller.slurm import states

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "base", "flags"),
    [
        ("idle", "IDLE", set()),
        ("DOWN*+DRAIN", "DOWN", {"DRAIN", "NOT_RESPONDING"}),
        ("DOWN+DRAIN+NOT_RESPONDING", "DOWN", {"DRAIN", "NOT_RESPONDING"}),
        ("idle~", "IDLE", {"POWERED_DOWN"}),
        ("alloc", "ALLOCATED", set()),
        ("mixed$", "MIXED", {"MAINTENANCE"}),
        ("REBOOT*+DRAIN", "UNKNOWN", {"REBOOT_ISSUED", "DRAIN", "NOT_RESPONDING"}),
        ("drained*", "IDLE", {"DRAIN", "NOT_RESPONDING"}),
        ("IDLE+NEWFLAG", "IDLE", {"NEWFLAG"}),
        ("FROBNICATED", "UNKNOWN", set()),
    ],
)
def test_node_words(text: str, base: str, flags: set[str]) -> None:
    state = states.parse_node(text)
    assert (state.base, state.flags, state.raw) == (base, flags, text)


@pytest.mark.parametrize(
    "text", ["DOWN", "IDLE+DRAIN", "IDLE*", "IDLE~", "IDLE+POWERING_UP", "MIXED+MAINTENANCE", "IDLE+RESERVED",
             "IDLE+REBOOT_REQUESTED", "UNKNOWN", "FUTURE", "IDLE+FAIL", "FROBNICATED", "INVAL"]
)  # fmt: skip
def test_nodes_nothing_can_start_on(text: str) -> None:
    assert not states.parse_node(text).usable


@pytest.mark.parametrize("text", ["IDLE", "MIXED+PLANNED", "ALLOCATED", "IDLE+COMPLETING", "IDLE+DYNAMIC_NORM"])
def test_nodes_something_can_start_on(text: str) -> None:
    assert states.parse_node(text).usable


def test_drained_is_out_and_empty() -> None:
    assert states.parse_node("IDLE+DRAIN").drained and states.parse_node("DOWN+DRAIN").drained
    for text in ("IDLE+COMPLETING+DRAIN", "MIXED+DRAIN", "ALLOCATED+DRAIN", "IDLE", "draining"):
        assert not states.parse_node(text).drained
    assert states.parse_node("IDLE+POWERING_DOWN").powering and states.parse_node("IDLE+REBOOT_ISSUED").rebooting


def test_lists_in_any_order_are_the_same_node() -> None:
    one, other = states.parse_node(["DRAIN", "IDLE"]), states.parse_node(["idle", "DRAIN"])
    assert (one.base, one.flags) == (other.base, other.flags) == ("IDLE", {"DRAIN"})


@pytest.mark.parametrize("text", ["", "  ", "+"])
def test_no_state_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        states.parse_node(text)
    with pytest.raises(ValueError):
        states.parse_job("")
    with pytest.raises(ValueError):
        states.parse_job([text.strip(" +")])


def test_job_flags_and_their_bases() -> None:
    completing = states.parse_job("COMPLETING")
    assert (completing.base, completing.live, completing.running, completing.terminal) == (
        "UNKNOWN",
        True,
        False,
        False,
    )
    listed = states.parse_job(["CANCELLED", "COMPLETING"])
    assert listed.base == "CANCELLED" and not listed.terminal and listed.live
    configuring = states.parse_job("CONFIGURING")
    assert configuring.base == "RUNNING" and not configuring.running and configuring.live
    assert states.parse_job(["PENDING", "REQUEUE_HOLD"]).held
    odd = states.parse_job("FROBNICATED")
    assert (odd.base, odd.live, odd.terminal, odd.raw) == ("UNKNOWN", False, False, "FROBNICATED")
    assert states.parse_job("CANCELLED by 0").cancelled_by == 0
