"""Kernel logs recorded by others."""

import pytest

from tests.shared_data import shared_data
from worker_hooks.signs.log import read_lines

pytestmark = pytest.mark.data


def test_the_xid_119_log_gives_its_events_with_number_address_and_process() -> None:
    lines = (shared_data() / "kernel-logs" / "dmesg-with-xid-119.log").read_text().splitlines()
    signs = [sign for sign in read_lines("kernel", lines) if sign.family == "xid"]
    assert {(sign.code, sign.attrs["pci"]) for sign in signs} == {("xid.119", "0000:9b:00")}
    assert [(sign.attrs["process"], sign.attrs["pid"], sign.count) for sign in signs] == [
        ("nvidia-smi", 2024380, 3),
        ("cache_mgr_main", 1263500, 1),
        ("gpud", 1240590, 1),
    ]
    assert signs[0].attrs["gpu_uuid"] == "GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert signs[0].last_at == signs[0].at + 12


def test_the_other_log_gives_its_oom_kills_with_victim_and_its_xids() -> None:
    lines = (shared_data() / "kernel-logs" / "dmesg.decode.iso.log").read_text().splitlines()
    signs = read_lines("kernel", lines)
    kills = [(sign.attrs["process"], sign.attrs["pid"]) for sign in signs if sign.code == "oom.kill"]
    assert kills == [("httpd", 123), ("python", 456), ("node", 863987)]
    xids = [sign for sign in signs if sign.family == "xid"]
    assert {sign.code for sign in xids} == {"xid.13", "xid.43"}
    assert {sign.attrs["pci"] for sign in xids} == {"0000:38:00"}
    assert sum(sign.count for sign in xids) == 17
    assert xids[-1].attrs["process"] == "pt_main_thread"
