"""Where the cases are proved that are not about reading Slurm, and the parts of them that fit here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from controller.decision.detectors import detect
from controller.decision.diagnosis import diagnose
from controller.decision.facts import NodeFact
from controller.decision.findings import Finding
from controller.decision.policy import Policy
from controller.slurm import hostlist, states
from tests.decision.quiet import NOW, agent, attempt, slurm_job, subject
from tests.slurm.test_cases import CASES, given
from worker_hooks.cli import signals

pytestmark = pytest.mark.pure

TESTS = Path(__file__).parents[1]
# Each statement of the case that is not proved below, by file and test.
ELSEWHERE = {
    "A46": {
        "decision/test_time_limit.py": ["test_slurm_queued_a_preempted_job_again_and_nobody_else_does"],
        "scenarios/test_launch.py": ["test_preemption_is_slurms_own_doing"],
        "scenarios/test_expected_silence.py": ["test_a_job_preempted_and_queued_again_by_slurm"],
    },
    "S10": {
        "scenarios/test_expected_silence.py": [
            "test_s10_a_reboot_while_our_job_runs",
            "test_s10_a_reboot_that_clears_our_drain_clears_neither_hold_nor_exclusion",
        ],
    },
    "S17": {
        "slurm/test_cli.py": ["test_accounting_is_asked_for_one_job_since_a_moment", "test_accounting_of_one_task"],
        "controller/test_snapshot.py": [
            "test_a_reused_job_id_is_not_the_job",
            "test_a_job_that_left_slurm_has_not_failed",
        ],
    },
    "S22": {"worker_hooks/test_signal_option.py": ["test_the_default_is_not_usr1_and_may_be_set"]},
    "S23": {
        "worker_hooks/test_signal_option.py": [
            "test_the_lines_for_b_forward_the_signal_and_wait_for_the_command",
            "test_what_will_not_work_is_said",
        ]
    },
    "S25": {
        "decision/test_launch.py": ["test_the_first_failure_keeps_the_batch_host_away_and_waits"],
        "decision/test_relaunch.py": [
            "test_the_second_failure_of_the_job_on_a_node_holds_it_and_stops_the_job",
            "test_the_second_failure_there_by_another_job_holds_the_node_and_goes_on",
            "test_the_back_off_only_grows_and_has_its_bounds",
        ],
    },
    "S39": {
        "scenarios/test_neighbours.py": ["test_another_users_job_on_a_reachable_node_survives"],
        "decision/test_node_hold.py": ["test_follow"],
        "dashboard/test_other_people.py": [
            "test_staff_and_bob_read_what_the_drain_waits_for",
            "test_others_read_no_more_than_that_somebody_is_there",
        ],
    },
    "S41": {
        "decision/test_node_hold.py": [
            "test_three_drains_in_a_day_stick",
            "test_a_sticky_hold_is_not_released_by_what_slurm_shows",
        ],
        "scenarios/test_expected_silence.py": [
            "test_three_drains_in_a_day_stick",
            "test_a_controller_that_restarts_into_silence_touches_no_node",
        ],
        "decision/test_admit.py": ["test_no_ceiling_is_ever_passed"],
    },
}


@pytest.mark.parametrize("case_id", sorted(ELSEWHERE))
def test_what_is_named_is_there(case_id: str) -> None:
    for file, names in ELSEWHERE[case_id].items():
        tree = ast.parse((TESTS / file).read_text())
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(names) <= there, file


def test_A44() -> None:
    """The text names the node that printed it; Slurm's states name the one that failed."""
    asked, expected = given("A44")
    words = [line.split(maxsplit=2) for line in asked["sinfo"]]
    shown = {name: states.parse_node(word) for folded, word, *_ in words for name in hostlist.expand(folded)}
    names = tuple(hostlist.expand(asked["nodes_of_job"]))
    hit = subject(
        attempt=attempt(nodes=names, agents=tuple(agent(name) for name in names if shown[name].base != "DOWN")),
        slurm=slurm_job(base=asked["sacct"]["State"], nodes=names),
        nodes={name: NodeFact(name, shown[name].base, shown[name].flags, reason="Not responding") for name in names},
    )
    finding = detect(hit, NOW, Policy(mode="act"))
    assert isinstance(finding, Finding)
    verdict = diagnose(hit, finding, NOW, Policy(mode="act"))
    assert list(verdict.suspects) == expected["suspect_nodes"] and list(verdict.exclude) == expected["exclude"]
    assert verdict.budget == "infrastructure" and "gn01" not in (*verdict.hold, *verdict.exclude)


def test_S22() -> None:
    asked, _ = given("S22")
    named = signals.parse(asked["sbatch"].removeprefix("--signal="))
    assert "NCCL" in " ".join(signals.warnings(named)), "asked for by the user, it is theirs, and said"
    assert signals.wanted({}).signal != named.signal


def test_S23() -> None:
    asked, expected = given("S23")
    steps, batch, short, reserved = [signals.parse(text.removeprefix("--signal=")) for text in asked["variants"]]
    assert (steps.to, batch.to, short.to, reserved.to) == ("steps", "batch", "steps", "steps")
    assert batch.needs_forwarding and not steps.needs_forwarding
    assert short.lead_s == 60 and "60 s" in expected["who"][2]
    assert reserved.overlap and reserved.signal == "TERM" and not steps.overlap
    assert [option.earliest_s - option.lead_s for option in (steps, batch, short, reserved)] == [60] * 4
    lines = "\n".join(signals.forwarding_lines(batch, "srun train"))
    assert "trap" in lines and "wait" in lines and "srun train &" in lines


def test_S39() -> None:
    """The hook waits until the node is drained, which with a job on it it is not."""
    asked, _ = given("S39")
    with_job = states.parse_node(asked["node"]["State"])
    assert with_job.draining and not with_job.drained
    assert states.parse_node("IDLE+DRAIN").drained and not states.parse_node("IDLE+COMPLETING+DRAIN").drained


def test_every_given_case_is_proved_somewhere() -> None:
    import tests.slurm.test_cases as reading

    names = {name for module in (vars(reading), globals()) for name in module if name.startswith("test_")}
    here = {part for name in names for part in name.split("_") if part[0] in "SA" and part[1:].isdigit()}
    assert here | ELSEWHERE.keys() == CASES.keys()
