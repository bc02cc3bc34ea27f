"""Relatives of the given cases of the fabric and of GPUs: more or fewer voices, other orders, the opposite verdict."""

from dataclasses import replace

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
