"""Where stuck ranks stand, when the controller asks: their Python stack by py-spy, and what /proc says of them.

py-spy is asked where it is installed (extra `stacks`) and may look. A kernel with Yama's `ptrace_scope` 1 lets only
ancestors look, so each rank names its agent as one that may (`ranks`); not tried on such a kernel. /proc needs no more
than the same owner, and is strong where it counts: uninterruptible sleep is storage or a driver. No signal is ever sent
to a rank: one whose default is to kill would kill a script that does not expect it.

On a thread of its own: reading a process that hangs in the kernel may hang too. Then nothing is told.
"""

import os
import selectors
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_hooks.agent.state import AgentState
from worker_hooks.signs.sign import Scalar, Sign
from worker_hooks.signs.stack import (
    SLEEPS_UNINTERRUPTIBLY,
    Frame,
    KernelView,
    kernel_view,
    python_stack,
    stack_sign,
    stat_fields,
)

MOST_RANKS = 8  # of one request
MOST_TASKS = 512  # threads of one rank that are looked at
MOST_FILES = 1024  # open files of one rank that are looked at
SPY_LIMIT_S = 5.0  # for one rank
KILLED_S = 0.5
MAX_BYTES = 4 << 20
SMALL_BYTES = 4096
# What a process that uses a GPU has open: NVIDIA's, AMD's, Intel's.
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


@dataclass(frozen=True)
class _Process:
    """`began`: clock ticks since boot, which tell it from a later process of the same number."""

    pid: int
    began: str


class StackReader:
    """`give` gets one sign for each rank that could be looked at; `say` writes to the job's log. `proc`: where /proc
    is."""

    def __init__(
        self,
        state: AgentState,
        give: Callable[[Sign], None],
        say: Callable[[str], None],
        environ: Mapping[str, str],
        proc: Path = Path("/proc"),
        limit_s: float = SPY_LIMIT_S,
    ) -> None:
        self._state = state
        self._give = give
        self._say = say
        self._spy = Spy(environ, limit_s)
        self._proc = Processes(proc)
        self._asked: set[str] = set()
        self._said: set[str] = set()
        self._turn = threading.Lock()

    def ask(self, asked: str, ranks: Sequence[int]) -> None:
        """Looks at these ranks, as far as they are this agent's; once for each `asked`. Never waits."""
        if asked in self._asked:
            return
        self._asked.add(asked)
        looking = threading.Thread(target=self._look, args=(asked, ranks), name="relume-stacks", daemon=True)
        looking.start()

    def end(self) -> None:
        """From any thread: no py-spy outlives the agent. Does not wait."""
        self._spy.end()

    def _look(self, asked: str, ranks: Sequence[int]) -> None:
        with self._turn:
            for number in list(dict.fromkeys(ranks))[:MOST_RANKS]:
                try:
                    self._look_at(asked, number)
                except Exception as error:  # a look at a process must not cost the agent anything
                    self._say_once(f"the stack of rank {number} could not be read: {type(error).__name__}: {error}")

    def _look_at(self, asked: str, number: int) -> None:
        process = self._process_of(number)
        if process is None:
            return
        kernel = self._proc.kernel(process.pid)
        frames: tuple[Frame, ...] = ()
        said = self._spy(process.pid)
        if said.stack is not None:
            with suppress(ValueError):
                frames = python_stack(said.stack, process.pid)[1]
            said = said if frames else SpyAnswer(why="py-spy's answer could not be read")
        if said.why:
            self._say_once(f"{said.why}: of stuck ranks only the kernel's view is told")
        gpu = self._proc.uses_gpu(process.pid)
        if kernel is None or not self._proc.same(process):
            return  # it ended meanwhile, and another may have its number
        more: dict[str, Scalar] = {"request": asked, "gpu": gpu}
        if said.why:
            more["why"] = said.why
        self._give(stack_sign(number, process.pid, frames, kernel, self._state.placement.node, time.time(), **more))

    def _process_of(self, number: int) -> _Process | None:
        """The process that writes the rank's slot, if it descends from the one that was started (a shell may be
        between); else that one. It stays a zombie until the agent ends, so its number is nobody else's."""
        found = next((rank for rank in self._state.group.ranks if rank.rank == number), None)
        if found is None or found.end is not None or found.pid is None:
            return None
        started = self._proc.find(found.pid)
        slot = self._state.slots()[found.local_rank]
        writer = self._proc.find(slot.pid) if slot is not None and slot.pid != found.pid else None
        return writer if writer is not None and self._proc.descends(writer.pid, found.pid) else started

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


# --- /proc --------------------------------------------------------------------------------------------------------


class Processes:
    """Reads that need no memory map of the process: those would wait for a process that hangs in the kernel."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, pid: int) -> _Process | None:
        fields = self._fields(pid)
        return None if fields is None or fields[0] in "ZX" else _Process(pid, fields[19])

    def same(self, process: _Process) -> bool:
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


# --- py-spy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpyAnswer:
    """What py-spy printed, or `why` there is nothing."""

    stack: str | None = None
    why: str = ""


class Spy:
    """`py-spy dump`, bounded in time and size. One that cannot be killed is waited for no longer, and none is started
    beside it."""

    def __init__(self, environ: Mapping[str, str], limit_s: float) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        self._command = shutil.which("py-spy", path=environ.get("PATH")) or shutil.which(beside)
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def __call__(self, pid: int) -> SpyAnswer:
        if self._command is None:
            return SpyAnswer(why="py-spy is not installed (extra `stacks`)")
        if self._over or (self._process is not None and self._process.poll() is None):
            return SpyAnswer(why="an earlier py-spy still hangs")
        try:
            process = subprocess.Popen(
                [self._command, "dump", "--pid", str(pid), "--nonblocking", "--json"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            return SpyAnswer(why=f"py-spy cannot be started ({error.strerror})")
        self._process = process
        try:
            return self._answer(process) if not self._over else SpyAnswer()  # said while it was being started
        finally:
            self._close(process)

    def end(self) -> None:
        self._over = True
        process = self._process
        if process is not None:
            process.kill()

    def _answer(self, process: "subprocess.Popen[bytes]") -> SpyAnswer:
        deadline = time.monotonic() + self._limit_s
        said = _drained(process, deadline)
        if said is None:
            late = time.monotonic() >= deadline
            return SpyAnswer(
                why=f"py-spy did not answer within {self._limit_s:g} s" if late else "py-spy said too much"
            )
        output, errors = (data.decode("utf-8", "replace") for data in said)
        with suppress(subprocess.TimeoutExpired):
            if process.wait(KILLED_S) == 0:
                return SpyAnswer(output)
        if "ermission" in errors:
            return SpyAnswer(why="py-spy may not look at the ranks (ptrace)")
        first = "".join(c if c.isprintable() else " " for c in errors.strip().partition("\n")[0][:160])
        return SpyAnswer(why=f"py-spy failed ({first or f'exit code {process.returncode}'})")

    @staticmethod
    def _close(process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _drained(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bytes] | None:
    """Both outputs to their ends; None where that takes too long or too much."""
    assert process.stdout is not None and process.stderr is not None  # both are pipes
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for number in kept:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0.0:
                return None
            for key, _ in selector.select(left):
                data = os.read(key.fd, 65536)
                kept[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if sum(map(len, kept.values())) > MAX_BYTES:
                    return None
    output, errors = kept.values()
    return bytes(output), bytes(errors)
