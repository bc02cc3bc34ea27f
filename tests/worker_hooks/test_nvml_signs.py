"""Two readings of NVIDIA's management library, and what they say."""

from dataclasses import replace

import pytest

from worker_hooks.signs.nvml import GpuReading, GpuReadings, address, gpu_signs

pytestmark = pytest.mark.pure
QUIET = GpuReading(0, "GPU-1", "0000:1b:00", 0, 0, False, False, 0, 0, 90)


def read(*gpus: GpuReading, count: int | None = None) -> GpuReadings:
    return GpuReadings(len(gpus) if count is None else count, gpus)


def test_a_quiet_gpu_says_nothing() -> None:
    assert gpu_signs(None, read(QUIET), 1) == gpu_signs(read(QUIET), read(QUIET), 1) == []


def test_a_gpu_that_tells_nothing_is_no_fault() -> None:
    bare = GpuReading(0, "GPU-1", "0000:1b:00")
    assert gpu_signs(read(bare), read(bare), 1) == []


def test_fewer_gpus_than_there_are() -> None:
    (sign,) = gpu_signs(None, read(QUIET), 8)
    assert (sign.code, sign.attrs) == ("gpu.missing", {"expected": 8, "found": 1})
    assert gpu_signs(None, read(QUIET), None) == []


def test_only_a_change_of_the_ecc_counts_is_said() -> None:
    old = replace(QUIET, ecc_volatile=2, ecc_aggregate=40)
    assert gpu_signs(None, read(old)) == gpu_signs(read(old), read(old)) == []
    (sign,) = gpu_signs(read(old), read(replace(old, ecc_volatile=3, ecc_aggregate=41)))
    assert sign.code == "gpu.ecc_uncorrected"
    assert sign.attrs == {"pci": "0000:1b:00", "gpu_uuid": "GPU-1", "volatile": 1, "aggregate": 1}


def test_a_driver_that_was_loaded_again_has_not_made_errors() -> None:
    old = replace(QUIET, ecc_volatile=2, ecc_aggregate=40)
    assert gpu_signs(read(old), read(replace(old, ecc_volatile=0))) == []


def test_gpus_are_compared_by_uuid_and_not_by_number() -> None:
    one, two = replace(QUIET, ecc_aggregate=5), GpuReading(1, "GPU-2", "0000:43:00", 0, 0)
    assert gpu_signs(read(one, two), read(replace(two, index=0), replace(one, index=1))) == []


def test_remapped_rows_and_what_the_driver_asks_for() -> None:
    now = replace(QUIET, remap_pending=True, remap_failed=True, recovery=4)
    signs = gpu_signs(None, read(now))
    assert [sign.code for sign in signs] == ["gpu.remap_failed", "gpu.remap_pending", "gpu.recovery_action"]
    assert signs[2].attrs["action"] == "drain_reset" and all(sign.attrs["gpu_uuid"] == "GPU-1" for sign in signs)


def test_clocks_held_down_by_the_hardware_twice_in_a_row() -> None:
    hot = replace(QUIET, throttle=0x08 | 0x40 | 0x04)
    assert gpu_signs(read(QUIET), read(hot)) == []
    (sign,) = gpu_signs(read(hot), read(hot))
    assert (sign.code, sign.attrs["reasons"]) == ("gpu.throttled", "hw_slowdown,hw_thermal")
    capped = replace(QUIET, throttle=0x04 | 0x20 | 0x01)
    assert gpu_signs(read(capped), read(capped)) == []


def test_a_gpu_that_is_lost_is_unreadable_and_nothing_else() -> None:
    lost = GpuReading(0, "GPU-1", "0000:1b:00", unreadable="GPU is lost")
    (sign,) = gpu_signs(read(QUIET), read(lost), 1)
    assert sign.code == "gpu.unreadable" and sign.attrs["text"] == "GPU is lost"


@pytest.mark.parametrize(
    ("bus_id", "pci"),
    [("00000000:9B:00.0", "0000:9b:00"), ("0000:9b:00.0", "0000:9b:00"), ("00010000:01:00.0", "0000:01:00")],
)
def test_addresses_as_xid_lines_have_them(bus_id: str, pci: str) -> None:
    assert address(bus_id) == pci
