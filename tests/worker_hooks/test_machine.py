"""What an agent says of its hardware: only what is burnt in, and nothing where nothing can be read."""

import json
import threading
from pathlib import Path

import pytest

from worker_hooks.agent.machine import read_aside, read_identity
from worker_hooks.protocol.machine import MAX_ITEMS, MachineIdentity, decode_machine, encode_machine
from worker_hooks.protocol.messages import decode_message, encode_message

pytestmark = pytest.mark.pure
GOLDEN = Path(__file__).with_name("golden") / "messages" / "message-v1-machine.json"
GPU = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 85\nGPU UUID: \t GPU-{}\nVideo BIOS: \t 96\n"


def host(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def nic(name: str, mac: str, kind: str = "0", **more: str) -> dict[str, str]:
    there = {"address": mac, "addr_assign_type": kind, "type": "1", "device/vendor": "0x15b3"} | more
    return {f"sys/class/net/{name}/{key}": text for key, text in there.items()}


def test_only_what_is_burnt_in_is_said(tmp_path: Path) -> None:
    veth = {k: v for k, v in nic("veth1", "0a:00:00:00:00:09").items() if "device" not in k}
    files = {
        **nic("eth1", "B8:CE:F6:00:00:02"),
        **nic("eth0", "b8:ce:f6:00:00:01"),
        **nic("vf0", "5e:00:00:00:00:01", kind="1"),
        **nic("slave0", "b8:ce:f6:00:00:01", kind="3", **{"bonding_slave/perm_hwaddr": "b8:ce:f6:00:00:03"}),
        **nic("ib0", "80:00:02:08", type="32"),
        **nic("dummy", "00:00:00:00:00:00"),
        **veth,
        "sys/class/infiniband/mlx5_0/node_guid": "b8ce:f603:0000:0001",
        "sys/class/infiniband/mlx5_1/node_guid": "0000:0000:0000:0000",
        "proc/driver/nvidia/gpus/0000:18:00.0/information": GPU.format("1111-22"),
        "proc/driver/nvidia/gpus/0000:2a:00.0/information": GPU.format("????????-????"),
        "sys/class/dmi/id/product_uuid": "4c4c4544-0042",
        "sys/class/dmi/id/board_serial": "To Be Filled By O.E.M.",
        "etc/machine-id": "0123456789abcdef0123456789abcdef",
    }
    found = read_identity(host(tmp_path, files))
    assert found.macs == ("b8:ce:f6:00:00:01", "b8:ce:f6:00:00:02", "b8:ce:f6:00:00:03")
    assert (found.guids, found.gpus) == (("b8ce:f603:0000:0001",), ("GPU-1111-22",))
    assert found.serials == ("product_uuid:4c4c4544-0042",)
    assert found.machine_id is not None and "0123456789abcdef" not in found.machine_id, "a digest travels"


def test_a_container_that_shows_nothing_says_nothing(tmp_path: Path) -> None:
    assert read_identity(tmp_path).empty
    kept: list[MachineIdentity] = []
    read_aside(kept.append, tmp_path)
    for thread in threading.enumerate():
        if thread.name == "relume-machine":
            thread.join(10)
    assert kept == []


def test_it_is_read_aside(tmp_path: Path) -> None:
    done = threading.Event()
    kept: list[MachineIdentity] = []
    read_aside(lambda found: (kept.append(found), done.set()), host(tmp_path, nic("eth0", "b8:ce:f6:00:00:01")))  # type: ignore[func-returns-value]
    assert done.wait(10) and kept[0].macs == ("b8:ce:f6:00:00:01",)


def test_the_machine_travels_with_the_heartbeat() -> None:
    data = json.loads(GOLDEN.read_text(encoding="utf-8"))
    message = decode_message(data)
    assert message.machine is not None and message.machine.guids == ("b8ce:f603:0000:0001",)
    assert decode_message(encode_message(message)) == message and encode_message(message)["machine"] == data["machine"]
    assert encode_machine(MachineIdentity(macs=("a",)))["gpus"] == []


@pytest.mark.parametrize("said", [None, [], "x", 5, {}, {"macs": "ab"}, {"macs": [1, None, ""]}, {"machine_id": 7}])
def test_what_is_not_understood_refuses_no_message(said: object) -> None:
    data = json.loads(GOLDEN.read_text(encoding="utf-8")) | {"machine": said}
    assert decode_message(data).machine is None


def test_what_is_said_is_bounded() -> None:
    found = decode_machine({"macs": [f"{k:012x}" * 99 for k in range(500)], "of_tomorrow": 1})
    assert found is not None and len(found.macs) == MAX_ITEMS and all(len(mac) == 128 for mac in found.macs)
