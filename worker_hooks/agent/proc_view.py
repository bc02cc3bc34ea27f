"""What /proc says of a process and its threads, bounded in what it reads. It needs no more than the same owner."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.signs.stack import SLEEPS_UNINTERRUPTIBLY, KernelView, kernel_view, stat_fields

MOST_TASKS = 512  # threads of one rank that are looked at
MOST_FILES = 1024  # open files of one rank that are looked at
SMALL_BYTES = 4096
# What a process that uses a GPU has open: NVIDIA's, AMD's, Intel's.
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


@dataclass(frozen=True)
class Process:
    """`began`: clock ticks since boot, which tell it from a later process of the same number."""

    pid: int
    began: str


class Processes:
    """Reads that need no memory map of the process: those would wait for a process that hangs in the kernel."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, pid: int) -> Process | None:
        fields = self._fields(pid)
        return None if fields is None or fields[0] in "ZX" else Process(pid, fields[19])

    def same(self, process: Process) -> bool:
        return self.find(process.pid) == process

    def descends(self, pid: int, ancestor: int) -> bool:
        for _ in range(16):
            fields = self._fields(pid)
            if fields is None or not fields[1].isdecimal():
                return False
            pid = int(fields[1])
            if pid == ancestor:
                return True
        return False

    def kernel(self, pid: int) -> KernelView | None:
        """The main thread; another one that sleeps uninterruptibly comes before it."""
        main = self._view(pid, str(pid))
        if main is None or main.state == SLEEPS_UNINTERRUPTIBLY:
            return main
        for name in self._names(self._root / str(pid) / "task", MOST_TASKS):
            with suppress(OSError, ValueError):
                if stat_fields(self._text(pid, name, "stat"))[0] == SLEEPS_UNINTERRUPTIBLY:
                    return self._view(pid, name) or main
        return main

    def uses_gpu(self, pid: int) -> bool:
        folder = self._root / str(pid) / "fd"
        for name in self._names(folder, MOST_FILES):
            with suppress(OSError):
                if str((folder / name).readlink()).startswith(GPU_FILES):
                    return True
        return False

    def _view(self, pid: int, task: str) -> KernelView | None:
        texts = []
        for name in ("stat", "wchan", "syscall", "stack"):
            try:
                texts.append(self._text(pid, task, name))
            except OSError:
                texts.append("")
        try:
            return kernel_view(*texts)
        except ValueError:
            return None

    def _fields(self, pid: int) -> list[str] | None:
        try:
            return stat_fields(self._text(pid, str(pid), "stat"))
        except (OSError, ValueError):
            return None

    def _text(self, pid: int, task: str, name: str) -> str:
        with (self._root / str(pid) / "task" / task / name).open("rb") as file:
            return file.read(SMALL_BYTES).decode("utf-8", "replace")

    @staticmethod
    def _names(folder: Path, most: int) -> list[str]:
        try:
            return sorted(path.name for path in folder.iterdir())[:most]
        except OSError:
            return []
