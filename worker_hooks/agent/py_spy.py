"""The Python stack of a process, by py-spy where it is installed (extra `stacks`) and may look."""

import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SPY_LIMIT_S = 5.0  # for one rank
KILLED_S = 0.5
MAX_BYTES = 4 << 20


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
