"""Relatives of the given cases of programs, memory, set-up and Slurm: other numbers or orders, the opposite verdict."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision.assess import assess
from controller.decision.evidence import SENSOR, Evidence
from tests.decision.given import case_of, input_of, judged, knowledge

pytestmark = pytest.mark.pure


# --- programs, memory, set-up -----------------------------------------------------------------------------------------


def test_the_table_that_names_a_victim_first_changes_nothing() -> None:
    data = input_of("A27")
    data["log"] = dict(reversed(data["log"].items()))
    found = judged(data)
    assert (found.verdict, found.suspect_ranks, found.suspect_nodes) == ("user_code", (11,), ())


def test_the_same_error_at_the_same_step_again_stops() -> None:
    case = replace(case_of(input_of("A27")), same_before=1)
    found = assess(case, knowledge())
    assert found.requeue is False
    assert found.stop


def test_a_second_identical_hang_stops_the_automatic_requeue() -> None:
    found = assess(replace(case_of(input_of("A28")), same_before=1), knowledge())
    assert (found.verdict, found.requeue) == ("hang_unattributed", False)
    assert found.follow_up


def test_numbers_of_different_groups_are_not_compared() -> None:
    data = input_of("A30")
    data["log"][2] = data["log"][2].replace("PG 1 Rank 5", "PG 2 Rank 5")
    assert 5 not in judged(data).suspect_ranks


def test_two_ranks_behind_are_both_named() -> None:
    data = input_of("A30")
    for rank in (1, 2, 4):
        data["log"].append(data["log"][0].replace("rank0", f"rank{rank}").replace("Rank 0", f"Rank {rank}"))
    data["log"].append(data["log"][2].replace("rank5", "rank6").replace("Rank 5", "Rank 6"))
    assert judged(data).suspect_ranks == (5, 6)


def test_a_run_that_is_not_finished_and_hangs_is_requeued() -> None:
    data = input_of("A33")
    del data["hook"], data["log"][0]
    found = judged(data)
    assert (found.verdict, found.requeue) == ("hang_unattributed", True)


def test_a_slow_start_is_tried_once_more() -> None:
    data = input_of("A35")
    data["attempts_same"] = 1
    found = judged(data)
    assert (found.verdict, found.requeue, found.requeue_limit) == ("config", True, 1)


def test_the_watchdogs_silence_began_before_it_spoke() -> None:
    case = case_of(input_of("A36"))
    first = min(e.at for e in case.evidence if e.at is not None)
    assert assess(case, knowledge()).onset == first - 480


def test_kills_with_progress_between_go_on() -> None:
    data = input_of("A37")
    data["attempts"][1]["last_step"] = 900
    found = judged(data)
    assert (found.verdict, found.requeue) == ("host_oom", True)


def test_a_host_that_ran_out_as_a_whole_is_not_the_jobs_limit() -> None:
    lines = ["[ 9.1] Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, UID:1000"]
    found = judged(
        {
            "dmesg": {"gn02": lines},
            "log": ["[rank3]: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."],
        }
    )
    assert (found.verdict, found.suspect_nodes, found.drain, found.exclude) == ("host_oom", ("gn02",), (), ())


def test_no_gpu_anywhere_is_the_jobs_set_up() -> None:
    line = "RuntimeError: cuda runtime error (38) : no CUDA-capable device is detected"
    data: dict[str, Any] = {"log": {"gn53": [line], "gn54": [line]}, "last_step": 0}
    found = judged(data)
    assert (found.verdict, found.drain, found.exclude, found.requeue) == ("config", (), (), False)
    data = input_of("A60")
    data["other_nodes"] = "gn[50-52] print the same error"
    assert judged(data).verdict == "config"


def test_not_a_number_with_a_hardware_sign_is_hardware() -> None:
    data = {"evidence": ["NaN at step 910 on node gn48", "uncorrectable ECC errors on gn48"]}
    found = judged(data)
    assert (found.verdict, found.drain) == ("gpu_hardware", ("gn48",))
    alone = judged({"evidence": ["NaN at step 910 on node gn48"]})
    assert (alone.verdict, alone.suspect_nodes, alone.drain) == ("unknown", (), ())


# --- Slurm ------------------------------------------------------------------------------------------------------------


def test_two_down_nodes_are_both_kept_away_from_and_the_printer_is_not() -> None:
    data = input_of("A44")
    data["sinfo"] = ["gn[01-03,06-08] idle", "gn[04-05] down* Not responding"]
    found = judged(data)
    assert (found.suspect_nodes, found.exclude, found.drain) == (("gn04", "gn05"), ("gn04", "gn05"), ())
    del data["sinfo"]
    assert judged(data).suspect_nodes == ()


@pytest.mark.parametrize("name", ["A46", "A47", "A43"])
def test_crash_lines_around_a_planned_end_are_consequences(name: str) -> None:
    data = input_of(name)
    data["log"] += [
        "[rank1]: RuntimeError: NCCL error: remote process exited or there was a network error",
        "srun: error: gn21: tasks 0-3: Exited with exit code 143",
        "gn21:1:2 [0] NCCL WARN socketProgress: Connection closed by remote peer gn22<40112>",
    ]
    plain, found = judged(input_of(name)), judged(data)
    assert (found.verdict, found.budget, found.exclude) == (plain.verdict, "none", ())


def test_a_second_refused_launch_on_one_node_drains_it() -> None:
    data = input_of("A49")
    data["history"] = [{"job": 40, "node": "cn31", "error": data["log"][0]}]
    assert judged(data).drain == ("cn31",)


def test_a_lost_peer_whose_kernel_saw_its_gpu_fail_is_explained() -> None:
    data = input_of("A51")
    data["dmesg"] = {"gn42": ["[ 9.1] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."]}
    found = judged(data)
    assert (found.verdict, found.suspect_nodes, found.drain) == ("gpu_hardware", ("gn42",), ("gn42",))


def test_a_node_that_is_out_already_is_not_drained_again() -> None:
    data = input_of("A06")
    data["sinfo"] = ["gn31 drained broken gpu [root@2026-03-05T03:12:40]"]
    found = judged(data)
    assert (found.drain, found.exclude) == ((), ("gn31",))
    assert "gn31" in found.node_actions


def test_the_checkers_own_failure_is_never_evidence() -> None:
    case = case_of({"nodes_of_job": "gn[01-02]"})
    own = [
        Evidence(code, code, "node", "sensor", SENSOR, "failed", node="gn01")
        for code in ("sensor.reader_failed", "gpu.unreadable")
    ]
    found = assess(replace(case, evidence=tuple(own)), knowledge())
    assert (found.suspect_nodes, found.drain, found.exclude, found.verdict) == ((), (), (), "unknown")
