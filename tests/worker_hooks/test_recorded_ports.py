"""The recorded InfiniBand tree of an 8x H100 host: every port with state, rate and counters."""

from pathlib import Path

import pytest

from tests.shared_data import shared_data
from worker_hooks.signs.infiniband import port_signs, read_ports

pytestmark = pytest.mark.data


def test_every_port_of_the_recorded_host(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(shared_data() / "sysfs/infiniband-h100")
    found = read_ports(tmp_path, 0.0)
    assert found is not None
    cards = [f"mlx5_{n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)]
    assert sorted(found.ports) == [*((card, 1) for card in cards), ("mlx5_bond_0", 1)]
    for (device, _), port in found.ports.items():
        assert port.active and port.phys_state == "LINKUP"
        assert port.rate_gbps == (200.0 if device == "mlx5_bond_0" else 400.0)
        assert port.roce is (device == "mlx5_bond_0")
        assert {"symbol_error", "link_downed", "port_rcv_data", "out_of_sequence"} <= set(port.counters)
    assert found.ports["mlx5_4", 1].counters["port_rcv_data"] == 230539874932483
    assert found.ports["mlx5_4", 1].counters["excessive_buffer_overrun_errors"] == 15
    assert port_signs(found, found, found.ports) == [], "a healthy host"
