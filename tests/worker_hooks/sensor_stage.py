"""A made-up host with a sensor on it, as a real process; what its kernel says is written by the test."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.worker_hooks.fake_host import FakeHost

BOOT = "5f0c6f0e-6f38-4c53-9d4e-0b7b8a3f2a11"
PCI = "0000:1b:00"
UUID = "GPU-5c1a3e7e-0000-0000-0000-000000000001"


def eventually(check: Callable[[], object], seconds: float = 60.0) -> None:
    """`seconds` is generous: it is how long a test may take to fail."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


class SensorStage:
    """`url`: of the controller that the sensors report to. `close` ends those that still run."""

    def __init__(self, folder: Path, url: str, token: str = "t") -> None:
        self.host = FakeHost(folder / "host")
        boot = folder / "host/proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(BOOT + "\n")
        self.host.gpu_information(PCI, UUID)
        self.host.memory(1_000_000)
        self.url, self.token = url, token
        self.log = folder / "kmsg"
        self.log.write_text("")
        self.spool = folder / "spool"
        self.config = folder / "sensor.json"
        self._number = 0
        self._running: list[subprocess.Popen[bytes]] = []
        self.configure()

    def configure(self, **changes: object) -> None:
        data = {"url": self.url, "token": self.token, "node": "gpu1", "interval_s": 0.2, "spool": str(self.spool)}
        data |= {"root": str(self.host.root), "kernel_log": str(self.log), **changes}
        self.config.write_text(json.dumps(data))
        self.config.chmod(0o600)

    def start(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "worker_hooks.sensor", "--config", str(self.config)]
        with (self.config.parent / "stderr").open("ab") as stderr:
            process = subprocess.Popen(argv, stderr=stderr)
        self._running.append(process)
        return process

    def kernel(self, text: str, *, ago_s: float = 0.0, facility: int = 0) -> None:
        micros = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 - int(ago_s * 1e6)
        with self.log.open("a") as file:
            file.write(f"{facility * 8 + 4},{self._number},{micros},-;{text}\n")
        self._number += 1

    def xid(self, number: int, pci: str = PCI, **how: float) -> None:
        self.kernel(f"NVRM: Xid (PCI:{pci}): {number}, pid='<unknown>', name=<unknown>, words", **how)  # type: ignore[arg-type]

    def cut_short(self) -> None:
        """The log is emptied in place, and its numbers begin again."""
        self.log.write_text("")
        self._number = 0

    def flood(self, text: str, count: int) -> None:
        micros = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        numbers = range(self._number, self._number + count)
        with self.log.open("a") as file:
            file.writelines(f"4,{number},{micros + number},-;{text}\n" for number in numbers)
        self._number += count

    @property
    def said(self) -> str:
        """On stderr, all of them together."""
        return (self.config.parent / "stderr").read_text()

    def spooled(self, code: str) -> bool:
        path = self.spool / "stream.jsonl"
        return path.exists() and code.encode() in path.read_bytes()

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(10)
        if self._running:
            print(self.said)  # pytest shows it with a failure
