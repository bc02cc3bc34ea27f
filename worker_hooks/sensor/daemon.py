"""The sensor of one node: kernel records into signs at once, counters at every round, all of it through the spool.

The main thread reads the kernel's log and nothing else; disk, network and each reader of counters have threads of their
own, so that none of them can keep it from a line that it has to see.
"""

import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from worker_hooks._version import __version__
from worker_hooks.agent.machine import read_aside
from worker_hooks.agent.sign_record import sign_draft
from worker_hooks.agent.wakeup import Wakeup
from worker_hooks.protocol.machine import MachineIdentity
from worker_hooks.protocol.messages import Record
from worker_hooks.protocol.sense import OK, STATUS_CHARS, SenseMessage
from worker_hooks.sensor.config import Config
from worker_hooks.sensor.counters import (
    Gpus,
    InfinibandReader,
    LinkReader,
    MemoryReader,
    NvmlReader,
    PcieReader,
    driver_uuids,
)
from worker_hooks.sensor.kernel_log import FILE_PAUSE_S, KernelLog, Position, open_log
from worker_hooks.sensor.nvml import Nvml
from worker_hooks.sensor.rounds import Round
from worker_hooks.sensor.sender import Sender
from worker_hooks.sensor.stream import Stream
from worker_hooks.signs.log import KERNEL, LogReader
from worker_hooks.signs.sign import Sign

GPUS_FIRST_S = 2.0  # so that the first Xid already finds its GPU's UUID
TICK_S = 1.0
PLACE_S = 60.0  # how often the place in the log is kept though nothing was found
OPEN_AGAIN_S = 5.0
ENDING_S = 1.5
CLOCK_STEP_S = 1.0


class Sensor:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._started_at = time.time()
        self._boot_id = _boot_id(config.root)
        self._stream = Stream(config.spool, config.node)
        self._position = self._stream.position(self._boot_id)
        self._kept = time.monotonic()
        self._log: KernelLog | None = None
        self._log_status = OK
        self._open_at = 0.0
        self._booted_at = _booted_at()
        self._reader = self._new_reader()
        self._machine: MachineIdentity | None = None
        self._gpus = Gpus()
        self._rounds = self._readers()
        self._to_write = threading.Event()
        self._sender = Sender(config.url, config.token, config.interval_s, self._stream, self._message, say)

    def run(self) -> None:
        """Until SIGTERM or SIGINT; then what is known is on disk, and sent where the controller answers."""
        wakeup = Wakeup()
        read_aside(self._learn_machine, self._config.root)
        threading.Thread(target=self._write, name="relume-spool", daemon=True).start()
        for one in self._rounds:
            one.start()
        self._rounds[0].first.wait(GPUS_FIRST_S)
        self._sender.start()
        while wakeup.got_signal is None:
            if not self._kernel_turn():
                self._wait(wakeup)
        self._end()

    # --- the kernel's log ---

    def _kernel_turn(self) -> bool:
        """Read what is there; True if there is more."""
        try:
            log = self._opened()
            if log is None:
                return False
            records = log.read()
            self._log_status = OK if not log.lost else f"ok, {log.lost} records were overwritten before they were read"
        except OSError as error:
            self._close_log(f"{type(error).__name__}: {self._config.kernel_log}: {error.strerror}")
            return False
        self._follow_clock()
        signs = self._reader.feed(b"".join(record.line() for record in records), time.time())
        if records:
            self._position = records[-1].position
        self._keep_kernel(signs)
        return log.more

    def _opened(self) -> KernelLog | None:
        if self._log is None and time.monotonic() >= self._open_at:
            self._log = open_log(self._config.kernel_log, self._position, self._config.history_s)
        return self._log

    def _close_log(self, status: str) -> None:
        self._log_status = status[:STATUS_CHARS]
        self._open_at = time.monotonic() + OPEN_AGAIN_S
        if self._log is not None:
            with suppress(OSError):
                self._log.close()
            self._log = None

    def _follow_clock(self) -> None:
        """Records are dated by the boot's moment, which moves when somebody sets the clock."""
        booted_at = _booted_at()
        if abs(booted_at - self._booted_at) > CLOCK_STEP_S:
            self._keep_kernel(self._reader.close())
            self._booted_at = booted_at
            self._reader = self._new_reader()

    def _keep_kernel(self, signs: list[Sign]) -> None:
        late = time.monotonic() - self._kept > PLACE_S and self._position.number >= 0
        if signs or late:
            self._kept = time.monotonic()
            self._keep([self._with_uuid(sign) for sign in signs], self._position)

    def _with_uuid(self, sign: Sign) -> Sign:
        pci = sign.attrs.get("pci")
        uuid = self._gpus.uuid(pci) if isinstance(pci, str) else None
        if uuid is None or "gpu_uuid" in sign.attrs:
            return sign
        return replace(sign, attrs={**sign.attrs, "gpu_uuid": uuid})

    def _new_reader(self) -> LogReader:
        return LogReader(KERNEL, node=self._config.node, booted_at=self._booted_at)

    # --- everything else ---

    def _readers(self) -> list[Round]:
        root = self._config.root
        self._gpus.learn(driver_uuids(root))
        readers: dict[str, Callable[[float], list[Sign] | None]] = {
            "nvml": NvmlReader(root, self._gpus, Nvml(), self._config.gpus),
            "infiniband": InfinibandReader(root),
            "pcie": PcieReader(root, self._gpus),
            "memory": MemoryReader(root),
            "link": LinkReader(root, self._config.interfaces),
        }
        return [Round(name, read, self._config.interval_s, self._keep_counters) for name, read in readers.items()]

    def _keep_counters(self, signs: list[Sign]) -> None:
        now = time.time()
        self._keep([replace(sign, at=now) for sign in signs], Position())

    def _keep(self, signs: list[Sign], position: Position) -> None:
        self._stream.add([sign_draft(sign, self._config.node) for sign in signs], self._boot_id, position)
        self._to_write.set()

    def _write(self) -> None:
        said: str | None = None
        while True:
            self._to_write.wait(TICK_S)
            self._to_write.clear()
            spool = self._stream.spool
            spool.flush()
            if spool.error != said:
                said = spool.error
                say(f"signs cannot be kept on disk: {said}" if said else "signs are kept on disk again")
            if spool.unacked:
                self._sender.hurry()

    def _wait(self, wakeup: Wakeup) -> None:
        fd = self._log.wait_fd if self._log else None
        if fd is None:
            wakeup.wait(FILE_PAUSE_S)
            return
        with suppress(InterruptedError):
            select.select([fd, wakeup.fd], [], [], TICK_S)
        wakeup.wait(0.0)

    def _learn_machine(self, machine: MachineIdentity) -> None:
        self._machine = machine

    def _message(self, records: tuple[Record, ...], clock_offset_s: float | None) -> SenseMessage:
        readers = {"kernel": self._log_status, **{one.name: one.status for one in self._rounds}}
        return SenseMessage(
            node=self._config.node,
            stream=self._stream.name,
            sent_at=time.time(),
            version=__version__,
            started_at=self._started_at,
            boot_id=self._boot_id,
            clock_offset_s=clock_offset_s,
            machine=self._machine,
            gpus=self._gpus.known,
            readers=readers,
            records=records,
        )

    def _end(self) -> None:
        """Within two seconds: what bursts still hold, then the disk, then the controller. A disk that hangs is left."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._keep_kernel(self._reader.close())
        if self._position.number >= 0:
            self._keep([], self._position)
        writing = threading.Thread(target=self._stream.spool.flush, args=(True,), daemon=True)
        writing.start()
        writing.join(ENDING_S / 3)
        self._sender.finish(ENDING_S * 2 / 3)
        self._stream.spool.flush()


def say(text: str) -> None:
    print(f"relume-sensor: {text}", file=sys.stderr, flush=True)


def _boot_id(root: Path) -> str:
    with suppress(OSError):
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()[:64]
    return "unknown"


def _booted_at() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
