"""Each node's kernel log: the driver's lines, a boot id, and what a death of the host does to them."""

import re
from pathlib import Path

import pytest

from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from tests.cluster.lab_probes import lab_py

pytestmark = pytest.mark.cluster

RECORD = re.compile(r"4,(\d+),(\d+),-;(NVRM: Xid \(PCI:0000:[0-9a-f]{2}:00\): (\d+), pid=.+, name=[^,]+, .+)")
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def records(lab: Lab, node: int) -> list[str]:
    """As the coming reader will find it: the path is in lab.json."""
    return Path(lab.state.as_json()["nodes"][node - 1]["kernel_log"]).read_text().splitlines()


def test_an_xid_is_a_record_of_that_nodes_kernel_log(lab: Lab) -> None:
    told = lab_py("xid", "2", "79", "--dir", str(lab.dir))
    assert told.returncode == 0, told.stderr
    lab.xid("gpu2", 94, gpu=3, pid=4242, name="pt_main_thread")
    lab.xid(2, 31337)
    found = [RECORD.fullmatch(line) for line in records(lab, 2)]
    assert [match and (match[1], match[4]) for match in found] == [("0", "79"), ("1", "94"), ("2", "31337")]
    first, second, unknown = (match[3] for match in found if match)
    assert first == told.stdout.strip() and first.endswith("GPU has fallen off the bus.")
    assert "pid=4242, name=pt_main_thread, Contained" in second
    assert unknown.endswith("Unknown error")
    assert first.split("PCI")[1][:13] != second.split("PCI")[1][:13], "another GPU has another address"
    times = [int(match[2]) for match in found if match]
    assert times == sorted(times) and records(lab, 1) == []


def test_what_is_no_code_is_refused(lab: Lab) -> None:
    for code in ("", "0", "-1", "79.0", "x79", "79\n80", "79\n", "123456", "²"):
        with pytest.raises(LabError, match="no Xid code"):
            lab.xid(3, code)
    with pytest.raises(LabError, match="GPU 8: a node has 0 to 7"):
        lab.xid(3, 79, gpu=8)
    assert records(lab, 3) == []


def test_ordinary_users_cannot_read_a_kernel_log(lab: Lab) -> None:
    lab.xid(1, 79)
    for user in ("owner", "controller", "web"):
        assert lab.run("cat", lab.state.node(1).kernel_log, user=user, check=False).returncode != 0


def test_a_host_that_died_comes_back_with_a_new_boot_id_and_an_empty_log(lab: Lab) -> None:
    def boot_ids() -> list[str]:
        return [lab.run("cat", BOOT_ID, on=node).stdout.strip() for node in (1, 2)]

    before = boot_ids()
    assert len({*before, Path(BOOT_ID).read_text().strip()}) == 3, "every host has its own"
    lab.xid(1, 79)
    lab.xid(2, 79)
    lab.kill_slurmd(1)
    lab.restore(1)
    lab.kill_node(2)
    lab.restore(2)
    after = boot_ids()
    assert after[0] == before[0] and len(records(lab, 1)) == 1, "a slurmd that is started again boots nothing"
    assert after[1] not in before and records(lab, 2) == []
