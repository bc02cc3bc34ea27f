"""InfiniBand, PCIe, memory and carrier: readings of made-up hosts, and what two of them say."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker_hooks.fake_host import MELLANOX, FakeHost
from worker_hooks.signs.codes import known, layer_of
from worker_hooks.signs.counting import counted, per_second
from worker_hooks.signs.infiniband import Ports, port_signs, rates, read_ports
from worker_hooks.signs.link import carrier_signs, read_interfaces, roce_interfaces
from worker_hooks.signs.memory import memory_signs, read_memory
from worker_hooks.signs.pcie import link_signs, nvidia_gpus, read_links
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def ports(host: FakeHost, at: float = 0.0) -> Ports:
    found = read_ports(host.root, at)
    assert found is not None
    return found


def codes(signs: list[Sign]) -> list[str]:
    assert all(known(sign.code) and sign.raw for sign in signs)
    return [sign.code for sign in signs]


# --- counters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "events"),
    [
        (5, 5, 0),
        (5, 9, 4),
        (2**32 - 10, 5, 15),  # a counter of 32 bits ran over
        (2**64 - 1, 0, 1),
        (2**32 - 10, 2**31, 2**31),  # not near its beginning: set back
        (1000, 0, 0),  # the driver was loaded again
        (1000, 7, 7),
        (2**40, 3, 3),
    ],
)
def test_a_counter_that_runs_over_or_is_set_back(before: int, now: int, events: int) -> None:
    assert counted(before, now) == events


def test_no_time_no_rate() -> None:
    assert per_second(0, 50, 5.0) == 10.0
    assert per_second(0, 50, 0.0) == 0.0


# --- InfiniBand -----------------------------------------------------------------------------------------------


def test_a_host_without_infiniband(host: FakeHost) -> None:
    assert read_ports(host.root, 0.0) is None


def test_a_port_is_read_with_state_rate_and_counters(host: FakeHost) -> None:
    host.ib_port("mlx5_0", counters={"symbol_error": 3, "port_xmit_data": 2**63}, hw_counters={"out_of_buffer": 4})
    port = ports(host).ports["mlx5_0", 1]
    assert (port.state, port.phys_state, port.rate_gbps, port.active, port.roce) == (
        "ACTIVE",
        "LINKUP",
        400.0,
        True,
        False,
    )
    assert port.counters["symbol_error"] == 3 and port.counters["port_xmit_data"] == 2**63
    assert port.counters["out_of_buffer"] == 4 and "lifespan" not in port.counters


def test_what_a_driver_does_not_tell_is_unknown_and_no_fault(host: FakeHost) -> None:
    host.ib_port("mlx5_0", state="", rate="garbage", counters={"symbol_error": 1})
    (host.root / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed").write_text("N/A (no PMA)")
    found = ports(host)
    port = found.ports["mlx5_0", 1]
    assert port.rate_gbps is None and port.state == "" and "link_downed" not in port.counters
    assert port_signs(found, found, [("mlx5_0", 1)]) == []


def test_counters_become_rates(host: FakeHost) -> None:
    host.ib_port("mlx5_0", counters={"port_rcv_data": 1000, "symbol_error": 2**32 - 50})
    before = ports(host).ports["mlx5_0", 1]
    host.ib_port("mlx5_0", counters={"port_rcv_data": 6000, "symbol_error": 50})
    measured = rates(before, ports(host).ports["mlx5_0", 1], 5.0)
    assert measured["port_rcv_data"] == 1000.0 and measured["symbol_error"] == 20.0


def test_errors_of_the_ports_own_link_are_said_as_a_rate(host: FakeHost) -> None:
    host.ib_port("mlx5_0")
    before = ports(host, 10.0)
    host.ib_port("mlx5_0", counters={"symbol_error": 120})
    (sign,) = port_signs(before, ports(host, 15.0))
    assert (sign.code, sign.layer) == ("ib.errors", layer_of("ib.errors"))
    assert sign.attrs == {"device": "mlx5_0", "port": 1, "counter": "symbol_error", "per_s": 24.0}


@pytest.mark.parametrize(
    "counter", ["port_rcv_remote_physical_errors", "port_xmit_discards", "port_xmit_wait", "VL15_dropped"]
)
def test_what_other_links_and_busy_switches_do_is_no_error_of_this_port(host: FakeHost, counter: str) -> None:
    host.ib_port("mlx5_0", counters={counter: 0}, hw_counters={"local_ack_timeout_err": 0})
    before = ports(host)
    host.ib_port("mlx5_0", counters={counter: 10**6}, hw_counters={"local_ack_timeout_err": 10**6})
    assert port_signs(before, ports(host, 5.0)) == []


def test_a_few_errors_an_hour_are_ordinary(host: FakeHost) -> None:
    host.ib_port("mlx5_0")
    before = ports(host)
    host.ib_port("mlx5_0", counters={"symbol_error": 9, "port_rcv_errors": 3})
    assert port_signs(before, ports(host, 5.0)) == []


def test_a_link_that_went_down_and_came_back_between_two_readings(host: FakeHost) -> None:
    host.ib_port("mlx5_0", counters={"link_downed": 1})
    before = ports(host)
    host.ib_port("mlx5_0", counters={"link_downed": 3})
    (sign,) = port_signs(before, ports(host, 5.0))
    assert sign.code == "ib.link_downed" and sign.attrs["count"] == 2


def test_a_port_that_was_up_and_is_not(host: FakeHost) -> None:
    host.ib_port("mlx5_0")
    host.ib_port("mlx5_1", state="1: DOWN", phys="3: Disabled")
    before = ports(host)
    host.ib_port("mlx5_0", state="1: DOWN", phys="2: Polling")
    (sign,) = port_signs(before, ports(host, 5.0), [("mlx5_0", 1)])
    assert (sign.code, sign.attrs["device"], sign.attrs["state"]) == ("ib.link_down", "mlx5_0", "down, polling")


def test_a_device_that_vanished_is_down(host: FakeHost) -> None:
    host.ib_port("mlx5_0")
    host.ib_port("mlx5_1")
    before = ports(host)
    shutil.rmtree(host.root / "sys/class/infiniband/mlx5_1")
    (sign,) = port_signs(before, ports(host, 5.0), [("mlx5_0", 1), ("mlx5_1", 1)])
    assert (sign.code, sign.attrs["device"], sign.attrs["state"]) == ("ib.link_down", "mlx5_1", "gone")


def test_a_port_slower_than_its_equals(host: FakeHost) -> None:
    for number in range(4):
        host.ib_port(f"mlx5_{number}")
    host.ib_port("mlx5_3", rate="200 Gb/sec (2X NDR)")
    host.ib_port("mlx5_bond_0", rate="100 Gb/sec (2X HDR)", layer="Ethernet", hca="MT4125")
    (sign,) = port_signs(None, ports(host))
    assert sign.code == "ib.slow"
    assert sign.attrs == {"device": "mlx5_3", "port": 1, "rate_gbps": 200.0, "expected_gbps": 400.0}


@pytest.mark.parametrize("rates_of_ports", [["400", "200"], ["400", "400", "200", "200"], ["200"], ["200", "200"]])
def test_no_majority_no_slow_port(host: FakeHost, rates_of_ports: list[str]) -> None:
    for number, rate in enumerate(rates_of_ports):
        host.ib_port(f"mlx5_{number}", rate=f"{rate} Gb/sec (4X NDR)")
    assert port_signs(None, ports(host)) == []


# --- PCIe -----------------------------------------------------------------------------------------------------


def test_a_gpu_that_rests_may_be_slow_but_not_narrow(host: FakeHost) -> None:
    host.pci_device("0000:1b:00.0", speed="2.5 GT/s PCIe")
    found = read_links(host.root)
    assert found is not None and link_signs(found, found) == []
    (sign,) = link_signs(found, found, busy={"0000:1b:00"})
    assert (sign.code, sign.attrs["speed"], sign.attrs["max_speed"]) == ("pcie.degraded", 2.5, 32.0)
    host.pci_device("0000:1b:00.0", speed="2.5 GT/s PCIe", width=8)
    narrow = read_links(host.root)
    assert narrow is not None
    assert link_signs(found, narrow) == [], "said from the second reading on"
    (sign,) = link_signs(narrow, narrow)
    assert (sign.attrs["pci"], sign.attrs["width"], sign.attrs["max_width"]) == ("0000:1b:00", 8, 16)


def test_a_card_in_a_narrower_slot_is_no_fault(host: FakeHost) -> None:
    host.pci_device("0000:1b:00.0", width=8, slot_width=8, speed="16.0 GT/s PCIe", slot_speed="16.0 GT/s PCIe")
    found = read_links(host.root)
    assert found is not None and link_signs(found, found, busy={"0000:1b:00"}) == []


def test_a_network_card_does_not_rest(host: FakeHost) -> None:
    host.pci_device(
        "0000:18:00.0", vendor=MELLANOX, kind="0x020700", driver="mlx5_core", speed="8.0 GT/s PCIe", width=16
    )
    found = read_links(host.root)
    assert found is not None
    (sign,) = link_signs(found, found)
    assert sign.attrs["pci"] == "0000:18:00" and sign.attrs["speed"] == 8.0


def test_what_has_no_link_of_its_own_is_left_out(host: FakeHost) -> None:
    host.pci_device("0000:01:00.0", vendor="0x8086", kind="0x010802", width=1)  # a disk
    host.pci_device("0000:02:00.0", kind="0x068000", width=1)  # an NVSwitch
    host.pci_device("0000:03:00.0", width=63, speed="Unknown")  # has left the bus
    virtual = host.pci_device("0000:04:00.1", vendor=MELLANOX, kind="0x020000", driver="mlx5_core", width=1)
    (virtual / "physfn").mkdir()
    assert read_links(host.root) == {}


def test_gpus_that_nvidias_driver_has(host: FakeHost) -> None:
    host.pci_device("0000:1b:00.0")
    host.pci_device("0000:43:00.0", driver="vfio-pci")
    assert nvidia_gpus(read_links(host.root) or {}) == ["0000:1b:00"]


def test_a_host_without_pci(host: FakeHost) -> None:
    assert read_links(host.root) is None


# --- memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("available_kb", "full", "said"),
    [
        (1_000_000, 0.0, False),
        (1_000_000, 90.0, False),  # a job in its own group stalls; the host has plenty
        (80_000, 0.0, False),
        (80_000, 25.0, True),
        (10_000, 0.0, True),
        (10_000, None, True),
        (80_000, None, False),
    ],
)
def test_memory_pressure(host: FakeHost, available_kb: int, full: float | None, said: bool) -> None:
    host.memory(available_kb, full_avg10=full)
    now = read_memory(host.root)
    assert now is not None
    signs = memory_signs(now)
    assert codes(signs) == (["node.memory_pressure"] if said else [])
    if said:
        assert signs[0].attrs["available_fraction"] == available_kb / 2_000_000
        assert signs[0].attrs.get("stalled_fraction") == (None if full is None else full / 100)


def test_a_kernel_that_does_not_say(host: FakeHost) -> None:
    assert read_memory(host.root) is None


# --- carrier --------------------------------------------------------------------------------------------------


def test_a_carrier_that_is_gone(host: FakeHost) -> None:
    host.interface("ib0")
    before = read_interfaces(host.root, ["ib0"])
    host.interface("ib0", carrier=0, losses=1)
    (sign,) = carrier_signs(before, read_interfaces(host.root, ["ib0"]), ["ib0"])
    assert (sign.code, sign.attrs) == ("link.carrier_lost", {"device": "ib0"})


def test_a_carrier_that_came_back_in_between(host: FakeHost) -> None:
    host.interface("ib0")
    before = read_interfaces(host.root, ["ib0"])
    host.interface("ib0", losses=2)
    (sign,) = carrier_signs(before, read_interfaces(host.root, ["ib0"]), ["ib0"])
    assert sign.count == 2 and "came back" in sign.raw


def test_an_interface_that_an_administrator_took_down(host: FakeHost) -> None:
    host.interface("ib0", carrier="", flags="0x1002")
    now = read_interfaces(host.root, ["ib0"])
    assert now["ib0"].carrier is None and carrier_signs(now, now, ["ib0"]) == []


def test_one_that_never_was_up_and_one_that_vanished(host: FakeHost) -> None:
    host.interface("eth9", carrier=0)
    now = read_interfaces(host.root, ["eth9", "ib0"])
    assert carrier_signs(now, now) == []
    assert [sign.attrs["device"] for sign in carrier_signs(now, now, ["ib0"])] == ["ib0"]


def test_kernels_that_count_both_directions(host: FakeHost) -> None:
    host.interface("ib0")
    folder = host.root / "sys/class/net/ib0"
    (folder / "carrier_down_count").unlink()
    (folder / "carrier_changes").write_text("4")
    assert read_interfaces(host.root, ["ib0"])["ib0"].losses == 2


def test_the_interfaces_of_roce_ports(host: FakeHost) -> None:
    host.ib_port("mlx5_0")
    host.ib_port("mlx5_bond_0", layer="Ethernet", interface="bond0")
    host.ib_port("mlx5_3", layer="Ethernet")
    assert roce_interfaces(host.root) == ["bond0"]


def test_readings_are_values(host: FakeHost) -> None:
    host.ib_port("mlx5_0")
    assert ports(host) == ports(host) and replace(ports(host), at=1.0) != ports(host)
