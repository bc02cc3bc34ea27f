"""Relatives of the given cases: other numbers, other orders, more or fewer voices, and the opposite verdict."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decision.assess import assess
from controller.decision.evidence import CONTROLLER, SENSOR, Evidence, PastAttempt
from tests.decision.given import case_of, input_of, judged, knowledge

pytestmark = pytest.mark.pure
WARN = (
    "ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer {peer}<40112> with status={status} opcode=0 len=0 "
    "vendor err 129 (Recv) localGid fe80::{me} remoteGids fe80::{it}"
)


def completion(reporter: str, peer: str, status: int = 12) -> str:
    line = WARN.format(peer=peer, status=status, me=reporter[2:], it=peer[-2:])
    return f"{reporter}:4120:4388 [3] {line}"


def xid(number: int, pci: str = "0000:9b:00", text: str = "something", at: str = "02:11:40") -> str:
    return f"Mar 05 {at} host kernel: NVRM: Xid (PCI:{pci}): {number}, pid=12, name=python, {text}"


# --- fabric -----------------------------------------------------------------------------------------------------------


def test_two_reporters_are_too_few_for_a_drain() -> None:
    data = input_of("A01")
    data["log"] = data["log"][:2]
    found = judged(data)
    assert (found.verdict, found.suspect_nodes, found.drain) == ("fabric", ("gn12",), ())
    assert found.exclude == ("gn12",)


def test_flush_errors_alone_name_nobody() -> None:
    data = input_of("A01")
    data["log"] = [completion(f"gn0{n}", "10.8.0.19", status=5) for n in (7, 8, 9)]
    found = judged(data)
    assert (found.suspect_nodes, found.drain, found.exclude) == ((), (), ())


def test_many_lines_of_one_reporter_are_one_voice() -> None:
    data = input_of("A01")
    data["log"] = [completion("gn07", "10.8.0.19").replace("[3]", f"[{n}]") for n in range(8)]
    found = judged(data)
    assert found.drain == ()
    assert found.confidence == "low"


def test_a_third_node_makes_one_of_a_pair_the_suspect() -> None:
    data = input_of("A02")
    data["ip_hosts"]["10.8.0.5"] = "gn05"
    data["log"].append(completion("gn05", "10.8.0.4"))
    found = judged(data)
    assert (found.suspect_nodes, found.drain, found.exclude) == (("gn04",), (), ("gn04",))


def test_a_third_node_in_a_later_attempt_does_so_too() -> None:
    data = input_of("A02")
    earlier = PastAttempt(evidence=case_of(data).evidence)
    later = case_of({"ip_hosts": {**data["ip_hosts"]}, "log": [completion("gn05", "10.8.0.4")]})
    assert assess(later, knowledge()).suspect_nodes == ("gn04", "gn05")
    assert assess(replace(later, attempts=(earlier,)), knowledge()).suspect_nodes == ("gn04",)


def test_everybody_complaining_about_everybody_is_nobodys_fault() -> None:
    nodes = {f"10.8.0.{n}": f"gn0{n}" for n in range(1, 7)}
    log = [completion(one, address) for one in nodes.values() for address, other in nodes.items() if other != one]
    found = judged({"ip_hosts": nodes, "log": log})
    assert (found.verdict, found.drain, found.exclude) == ("fabric", (), ())


def test_a_link_that_its_own_host_saw_fail_is_the_one() -> None:
    data = input_of("A01")
    data["dmesg"] = {"gn12": ["[ 100.5] mlx5_core 0000:1b:00.0 ib0: Link down"], "gn07": []}
    data["log"] = data["log"][:1]
    found = judged(data)
    assert (found.verdict, found.suspect_nodes, found.drain) == ("fabric", ("gn12",), ("gn12",))


def test_queue_pairs_that_fail_after_steps_are_no_set_up() -> None:
    data = input_of("A05")
    data["last_step"] = 5000
    found = judged(data)
    assert (found.verdict, found.drain, found.requeue) == ("fabric", (), True)


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [48, 64, 79, 95, 140])
def test_hard_numbers_drain(number: int) -> None:
    found = judged({"dmesg": {"gn31": [xid(number)]}})
    assert (found.verdict, found.drain, found.xid) == ("gpu_hardware", ("gn31",), number)


@pytest.mark.parametrize("number", [43, 45, 63, 92, 109, 999, 31, 13])
def test_soft_numbers_do_not(number: int) -> None:
    found = judged({"dmesg": {"gn31": [xid(number)]}})
    assert (found.drain, found.exclude) == ((), ())
    assert found.verdict != "gpu_hardware"


def test_teardown_noise_on_77_nodes_drains_none() -> None:
    found = judged({"dmesg": {f"gn{n:02}": [xid(45), xid(43)] for n in range(77)}})
    assert (found.suspect_nodes, found.drain, found.exclude) == ((), (), ())


def test_one_fault_on_many_nodes_at_one_moment_blames_nobody() -> None:
    found = judged({"dmesg": {f"gn{n:02}": [xid(94)] for n in range(8)}})
    assert (found.drain, found.exclude, found.suspect_nodes) == ((), (), ())


def test_two_bad_nodes_are_both_named() -> None:
    found = judged({"dmesg": {"gn31": [xid(79)], "gn32": [xid(48)], "gn33": []}, "nodes_of_job": "gn[31-40]"})
    assert found.drain == ("gn31", "gn32")
    assert {n: v.xid for n, v in found.per_node.items()} == {"gn31": 79, "gn32": 48}


def test_a_second_contained_error_within_a_day_drains() -> None:
    data = input_of("A14")
    first = data["dmesg"]["gn26"][0]
    data["dmesg"]["gn26"] = [first.replace("12:30", "06:10"), first]
    assert judged(data).drain == ("gn26",)
    data["dmesg"]["gn26"] = [first.replace("Aug  9", "Aug  7"), first]
    assert judged(data).drain == ()


def test_a_contained_error_remembered_from_today_drains() -> None:
    case = case_of(input_of("A14"))
    attrs = {"of": "xid.94", "pci": "0000:00:08", "hours_ago": 5.0, "error": "Xid 94"}
    memory = Evidence("h", "history.error", "node", "history", CONTROLLER, "Xid 94", node="gn26", attrs=attrs)
    assert assess(replace(case, evidence=(*case.evidence, memory)), knowledge()).drain == ("gn26",)
    old = replace(memory, attrs={**attrs, "hours_ago": 40.0})
    assert assess(replace(case, evidence=(*case.evidence, old)), knowledge()).drain == ()


def test_a_failed_row_remap_beside_a_contained_error_drains() -> None:
    data = input_of("A14")
    data["dmesg"]["gn26"].append(data["dmesg"]["gn26"][0].replace("94, ", "64, "))
    assert judged(data).drain == ("gn26",)


def test_the_nonfatal_ones_alone_are_nothing() -> None:
    data = input_of("A16")
    del data["dmesg"]["gn51"]
    found = judged(data)
    assert (found.verdict, found.drain, found.requeue, found.budget) == ("none", (), False, "none")


def test_an_illegal_access_twice_on_one_place_is_the_gpu() -> None:
    data = input_of("A10")
    lines = data["dmesg"]["gn18"]
    data["dmesg"]["gn18"] = [line.replace("17:37", "09:12") for line in lines] + lines
    found = judged(data)
    assert (found.verdict, found.exclude, found.drain) == ("gpu_hardware", ("gn18",), ())
    elsewhere = [line.replace("17:37", "09:12").replace("GPC 1, TPC 0", "GPC 4, TPC 6") for line in lines] + lines
    data["dmesg"]["gn18"] = elsewhere
    assert judged(data).verdict == "user_code"


def test_an_ecc_error_beside_an_illegal_access_is_the_gpu() -> None:
    data = input_of("A10")
    data["dmesg"]["gn18"].append(data["dmesg"]["gn18"][0].replace(": 13,", ": 48,"))
    found = judged(data)
    assert (found.verdict, found.drain, found.xid) == ("gpu_hardware", ("gn18",), 48)


def test_a_gpu_that_another_job_holds_is_not_about_this_one() -> None:
    case = case_of({"dmesg": {"gn31": [xid(79)]}})
    attrs = {**case.evidence[0].attrs, "gpu_uuid": "GPU-b"}
    case = replace(case, evidence=(replace(case.evidence[0], attrs=attrs),))
    assert assess(replace(case, gpus={"gn31": frozenset({"GPU-a"})}), knowledge()).drain == ()
    assert assess(replace(case, gpus={"gn31": frozenset({"GPU-b"})}), knowledge()).drain == ("gn31",)


def test_a_healthy_job_is_not_killed_for_a_pending_remap_but_a_lost_gpu_counts() -> None:
    data = input_of("A13")
    data["dmesg"]["gn10"].append("NVRM: Xid (PCI:0000:17:00): 79, pid=2041, GPU has fallen off the bus.")
    assert judged(data).drain == ("gn10",)


def test_an_ecc_error_inside_nccl_lines_is_hardware() -> None:
    line = "gn38:26110:27201 [1] include/alloc.h:125 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'"
    found = judged({"log": [line]})
    assert (found.verdict, found.drain) == ("gpu_hardware", ("gn38",))


def test_the_jobs_word_alone_excludes_and_a_root_sensor_makes_it_a_drain() -> None:
    case = replace(case_of(input_of("A21")), trusted=False)
    found = assess(case, knowledge())
    assert (found.drain, found.exclude, found.withheld) == ((), ("gn34",), ("gn34",))
    sensor = Evidence("s", "gpu.ecc_uncorrected", "gpu", "nvml", SENSOR, "ECC", node="gn34")
    agreed = assess(replace(case, evidence=(*case.evidence, sensor)), knowledge())
    assert (agreed.drain, agreed.withheld) == (("gn34",), ())


def test_errors_remembered_of_different_nodes_drain_none() -> None:
    data = input_of("A23")
    for number, entry in enumerate(data["history"]):
        entry["node"] = f"dg{number}"
    assert judged(data).drain == ()


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
