"""The sensor as a real process on a made-up host: killed, cut off, flooded. Nothing is lost, nothing comes twice."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_hooks.sense_double import SenseDouble
from tests.worker_hooks.sensor_stage import BOOT, PCI, UUID, SensorStage, eventually

pytestmark = pytest.mark.pure


class Stage(SensorStage):
    def __init__(self, folder: Path) -> None:
        self.controller = SenseDouble()
        super().__init__(folder, self.controller.url)

    def close(self) -> None:
        super().close()
        self.controller.away()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()
    assert made.controller.conflicts == []


def test_a_line_becomes_a_sign_with_its_gpu(stage: Stage) -> None:
    stage.start()
    eventually(lambda: stage.controller.messages)
    stage.xid(79)
    eventually(lambda: stage.controller.codes() == ["xid.79"])
    (sign,) = stage.controller.of_kind("sign")
    assert (sign["node"], sign["layer"], sign["source"]) == ("gpu1", "kernel", "kernel")
    assert sign["attrs"]["pci"] == PCI and sign["attrs"]["gpu_uuid"] == UUID
    assert abs(sign["at"] - time.time()) < 30
    message = stage.controller.messages[-1]
    assert message["boot_id"] == BOOT and message["gpus"] == [{"uuid": UUID, "pci": PCI}]
    assert message["readers"] == {
        "kernel": "ok", "nvml": "absent", "infiniband": "absent", "pcie": "absent", "memory": "ok", "link": "absent"
    }  # fmt: skip


def test_killed_and_started_again_nothing_is_lost_and_nothing_comes_twice(stage: Stage) -> None:
    first = stage.start()
    stage.xid(79)
    eventually(lambda: stage.controller.codes() == ["xid.79"])
    stage.controller.away()
    stage.xid(48)
    eventually(lambda: stage.spooled("xid.48"))
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    stage.xid(94)  # while no sensor runs
    stage.controller.back()
    stage.start()
    eventually(lambda: len(stage.controller.codes()) >= 3)
    stage.xid(95)
    eventually(lambda: "xid.95" in stage.controller.codes())
    assert stage.controller.codes() == ["xid.79", "xid.48", "xid.94", "xid.95"]
    assert len({message["stream"] for message in stage.controller.messages}) == 1


def test_the_first_start_reads_what_has_just_happened_and_no_old_stories(stage: Stage) -> None:
    stage.configure(history_s=60)
    stage.xid(48, ago_s=300)
    stage.xid(79, ago_s=20)
    stage.start()
    eventually(stage.controller.codes)
    stage.xid(94)
    eventually(lambda: "xid.94" in stage.controller.codes())
    assert stage.controller.codes() == ["xid.79", "xid.94"]


def test_a_process_cannot_speak_for_the_kernel(stage: Stage) -> None:
    stage.start()
    eventually(lambda: stage.controller.messages)
    stage.kernel("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.", facility=1)
    stage.xid(94)
    eventually(stage.controller.codes)
    assert stage.controller.codes() == ["xid.94"]


def test_a_log_that_is_cut_short_or_replaced(stage: Stage) -> None:
    stage.start()
    stage.xid(79)
    stage.xid(63)
    eventually(lambda: stage.controller.codes() == ["xid.79", "xid.63"])
    stage.cut_short()
    stage.xid(48)  # shorter than it was: whenever the sensor looks, it sees the cut
    eventually(lambda: "xid.48" in stage.controller.codes())
    stage.log.rename(stage.log.with_suffix(".1"))
    stage.log.write_text("")
    stage.xid(94)
    eventually(lambda: "xid.94" in stage.controller.codes())
    assert stage.controller.codes() == ["xid.79", "xid.63", "xid.48", "xid.94"]


def test_a_flood_is_a_handful_of_signs(stage: Stage) -> None:
    stage.start()
    eventually(lambda: stage.controller.messages)
    stage.flood("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python3, Ch 00000008", 100_000)
    stage.xid(79)
    eventually(lambda: "xid.79" in stage.controller.codes())
    assert stage.controller.codes() == ["xid.31", "xid.79"]
    assert (stage.spool / "stream.jsonl").stat().st_size < 100_000


def test_told_to_end_it_hands_over_what_it_holds(stage: Stage) -> None:
    process = stage.start()
    eventually(lambda: stage.controller.messages)
    stage.xid(31)
    stage.xid(31)
    eventually(lambda: stage.controller.codes() == ["xid.31"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert stage.controller.codes() == ["xid.31", "xid.31"], "what followed the first one is not kept back"


@pytest.mark.parametrize("trouble", ["error", "busy", "garbage", "cut"])
def test_a_controller_in_trouble(stage: Stage, trouble: str) -> None:
    stage.controller.mode = trouble
    stage.start()
    eventually(lambda: stage.controller.refused)
    stage.xid(79)
    eventually(lambda: stage.spooled("xid.79"))
    stage.controller.mode = "ok"
    eventually(lambda: stage.controller.codes() == ["xid.79"])


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk is a small tmpfs, which root can mount")
def test_a_full_disk_does_not_keep_signs_back(stage: Stage) -> None:
    stage.spool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", stage.spool], check=True, timeout=10)
    try:
        stage.start()
        eventually(lambda: stage.controller.messages)
        (stage.spool / "filler").write_bytes(b"x" * 49152)
        with pytest.raises(OSError), (stage.spool / "more").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        for number in range(64):  # more than what is left of the file's last page
            stage.xid(79, f"0000:{number:02x}:00")
        eventually(lambda: len(stage.controller.codes()) == 64)
        stage.close()
    finally:
        subprocess.run(["umount", "-l", stage.spool], check=True, timeout=10)


def test_a_configuration_that_cannot_be_used_is_said_by_its_key(stage: Stage) -> None:
    for changes, words in (({"url": "ftp://x"}, "url:"), ({"intervall_s": 5}, "intervall_s: no such key")):
        stage.configure(**changes)
        assert stage.start().wait(60) == 78
        assert words in stage.said
    stage.configure()
    stage.config.chmod(0o644)
    assert stage.start().wait(60) == 78
    assert "others may read it" in stage.said
