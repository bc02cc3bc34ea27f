"""The demonstration's report says what was measured, and a verdict that can fail."""

from pathlib import Path
from typing import Any

import pytest

from deploy.demo.report import build, differences, phases_from
from deploy.demo.training import Outcome

pytestmark = pytest.mark.pure
KILL = 1000.0
STAMPS: dict[str, dict[str, Any]] = {
    "last_good": {"at": 999.5, "source": "agentreport:1:received_at"},
    "detected": {"at": 1004.0, "source": "incident:1:detected_at"},
    "requeued": {"at": 1006.25, "source": "action:2:progress.requeued_at"},
    "first_step": {"at": 1015.0, "source": "attempt:2:first_step_at"},
    "first_new_step": {"at": 1016.5, "source": "attempt:2:first_new_step_at"},
    "verified": {"at": 1018.0, "source": "statechange:9:at"},
}


def outcome(losses: dict[str, dict[int, str]] | None = None, parameters: str = "sha256:aa") -> Outcome:
    return Outcome(
        {"0": {1: "0x1p0", 2: "0x1p-1"}} if losses is None else losses, parameters, Path("losses.json"), "sha256:bb"
    )


def detail(**changes: Any) -> dict[str, Any]:
    recovery = {"verification": "PASS", "stamps": STAMPS, "rpo_steps": 7, "rpo_s": 2.0}
    quiet = {"run_id": "tj-000000000001", "state": "finished", "state_reason": "", "recoveries": [recovery], "step": 2}
    return {**quiet, **changes}


def test_phases_are_differences_of_stamps_that_exist_and_sum_to_the_recovery_time() -> None:
    phases = phases_from(KILL, STAMPS)
    assert phases.seconds == {"detected": 4.0, "requeued": 2.25, "first_step": 8.75, "first_new_step": 1.5}
    assert phases.rto_s == sum(phases.seconds.values()) == 16.5
    assert phases.sources["detected"] == "incident:1:detected_at"


def test_without_a_new_step_there_is_no_recovery_time() -> None:
    stamps = {name: stamp for name, stamp in STAMPS.items() if name != "first_new_step"}
    assert (phases_from(KILL, stamps).rto_s, phases_from(KILL, stamps).seconds) == (None, {})


def test_a_good_run_is_verified_and_identical() -> None:
    report = build(detail(), KILL, outcome(), outcome())
    assert (report["verified"], report["bit_identical"], report["differences"]) == (True, True, [])
    assert (report["rto_s"], report["requeue_confirmed_s"], report["rpo_steps"]) == (16.5, 6.25, 7)


@pytest.mark.parametrize(
    "other",
    [
        outcome({"0": {1: "0x1p0", 2: "0x1.8p-1"}}),
        outcome({"0": {1: "0x1p0"}}),
        outcome({"0": {1: "0x1p0", 2: "0x1p-1", 3: "0x1p-2"}}),
        outcome({}),
        outcome(parameters="sha256:cc"),
    ],
    ids=["another loss", "a step is missing", "a step too many", "no losses", "other parameters"],
)
def test_every_difference_counts(other: Outcome) -> None:
    assert differences(other, outcome())
    assert not build(detail(), KILL, other, outcome())["bit_identical"]


@pytest.mark.parametrize("state", ["stopped", "cancelled"])
def test_a_run_that_did_not_finish_is_not_verified(state: str) -> None:
    assert not build(detail(state=state), KILL, None, None)["verified"]


def test_an_unverified_recovery_names_the_failed_check() -> None:
    checks = {"2": {"1": {"before_first_step": {"checks": [{"name": "random_state", "outcome": "FAIL"}]}}}}
    recovery = {"verification": "FAIL", "stamps": {}, "rpo_steps": 7, "rpo_s": 2.0}
    report = build(detail(state="stopped", recoveries=[recovery], verification=checks), KILL, None, None)
    assert (report["verified"], report["bit_identical"]) == (False, False)
    assert report["failed_checks"] == ["random_state"]
