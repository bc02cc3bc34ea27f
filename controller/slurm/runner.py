"""The one place of the controller that starts processes: argv in, bytes bounded, time limited, never a shell."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

MAX_OUTPUT = 256 * 1024 * 1024  # 10,000 nodes as JSON are 13 MB
_CHUNK = 1 << 20  # also what a pipe is asked to hold
_LONG, _PAUSE_S = 1 << 16, 0.001
_LAST_WORDS = 4000
# What a user's shell may have set to change what Slurm's commands print, read or do.
_DISPLAY_PREFIXES = ("SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_", "SCANCEL_", "SBATCH_", "SALLOC_", "SRUN_", "SLURM")
_KEPT = frozenset({"SLURM_CONF"})
_FIXED = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. `rc` is None when we ended it ourselves: out of time, or out of room for its output."""

    rc: int | None
    out: str
    err: str
    duration: float  # seconds
    timed_out: bool = False
    truncated: bool = False


def slurm_env(environ: Mapping[str, str], slurm_conf: str | None = None) -> dict[str, str]:
    """`environ` for Slurm's commands: C locale, epoch times (the standard form has no zone), lists of array tasks not
    cut short, no display settings."""
    kept = {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(_DISPLAY_PREFIXES)}
    kept |= _FIXED
    if slurm_conf:
        kept["SLURM_CONF"] = slurm_conf
    return kept


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs commands with one environment and, where `run_as` is given, behind that prefix ("setpriv --reuid=..").

    The prefix may drop the environment, so what matters is then said again through env(1); not behind sudo, whose rule
    names the command itself: its `env_keep` lets SLURM_CONF through, and LC_ALL passes.
    """

    env: Mapping[str, str] = field(default_factory=lambda: slurm_env(os.environ))
    run_as: tuple[str, ...] = ()
    max_output: int = MAX_OUTPUT

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        """OSError when the command cannot be started at all; everything else is in the answer."""
        started = time.monotonic()
        process = subprocess.Popen(
            self._command(argv),
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a process group of its own, so that all of it can be killed
        )
        collected = _Output(process, self.max_output)
        complete = collected.read_until(started + timeout)
        if not complete or not _ended(process, started + timeout):
            _kill_group(process)
        collected.close()
        cut = collected.truncated
        ended_by_itself = complete and process.returncode is not None and not cut
        return Completed(
            rc=process.returncode if ended_by_itself else None,
            out=collected.text("out"),
            err=collected.text("err"),
            duration=time.monotonic() - started,
            timed_out=not ended_by_itself and not cut,
            truncated=cut,
        )

    def start(self, argv: Sequence[str]) -> Child:
        """A process that stays. OSError when it cannot be started."""
        return Child(
            subprocess.Popen(
                self._command(argv),
                env=dict(self.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ),
            self.max_output,
        )

    def _command(self, argv: Sequence[str]) -> list[str]:
        if not self.run_as:
            return list(argv)
        if self.run_as[0].rpartition("/")[2] == "sudo":
            return [*self.run_as, *argv]
        said_again = {**_FIXED, **{key: self.env[key] for key in _KEPT if key in self.env}}
        return [*self.run_as, "env", *(f"{key}={value}" for key, value in said_again.items()), *argv]


class _Output:
    """Both pipes of one process, read without ever holding more than `limit` bytes of either."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._pipes: dict[str, IO[bytes]] = {"out": process.stdout, "err": process.stderr}
        self._read: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
        self._limit = limit
        self.truncated = False
        with contextlib.suppress(OSError):  # more than this user may have: the usual 64 KiB do as well
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _CHUNK)

    def read_until(self, deadline: float) -> bool:
        """True when both pipes were closed by the other side in time."""
        with selectors.DefaultSelector() as selector:
            for name, pipe in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, name)
            while selector.get_map():
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    return False
                if len(self._read["out"]) > _LONG:
                    time.sleep(_PAUSE_S)  # a long answer, written 4 KiB at a time: fewer and larger pieces
                for key, _ in ready:
                    if not self._take(key.data, key.fd):
                        selector.unregister(key.fileobj)
                if self.truncated:
                    return False
        return True

    def _take(self, name: str, fd: int) -> bool:
        chunk = os.read(fd, _CHUNK)
        kept = self._read[name]
        kept += chunk[: self._limit - len(kept)]
        if len(chunk) and len(kept) >= self._limit:
            self.truncated = True
        return bool(chunk)

    def text(self, name: str) -> str:
        return self._read[name].decode("utf-8", errors="replace")

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()


class Child:
    """A process that answers lines: one in, one out. Of no use any more after its first failure: `end` it."""

    def __init__(self, process: subprocess.Popen[bytes], max_line: int) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process, self._max_line = process, max_line
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._said = bytearray()
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)

    def ask(self, line: bytes, timeout: float) -> bytes:
        """The answer without its line end. TimeoutError; EOFError when the process ended; ValueError when the answer
        is longer than we take."""
        deadline = time.monotonic() + timeout
        unsent, answer = line + b"\n", bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                for key, _ in _ready(selector, deadline):
                    if key.fileobj is self._stdin:
                        unsent = unsent[self._send(unsent) :]
                        if not unsent:
                            selector.unregister(self._stdin)
                    elif key.fileobj is self._stderr:
                        if not self._listen():
                            selector.unregister(self._stderr)
                    elif not self._take(answer):
                        raise EOFError("the process ended")
        return bytes(answer[:-1])

    def _send(self, data: bytes) -> int:
        try:
            return os.write(self._stdin.fileno(), data[:_CHUNK])
        except BrokenPipeError:
            raise EOFError("the process ended") from None

    def _take(self, answer: bytearray) -> bool:
        chunk = os.read(self._stdout.fileno(), _CHUNK)
        answer += chunk
        if len(answer) > self._max_line:
            raise ValueError("a longer answer than we take")
        return bool(chunk)

    def _listen(self) -> bool:
        """Keeps the end of what it said on stderr."""
        chunk = os.read(self._stderr.fileno(), _CHUNK)
        self._said = (self._said + chunk)[-_LAST_WORDS:]
        return bool(chunk)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> str:
        """Kills it; returns the end of what it had said on stderr."""
        _kill_group(self._process)
        try:
            while self._listen():
                pass
        except BlockingIOError:  # somebody else holds the pipe open
            pass
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        return self._said.decode("utf-8", errors="replace").strip()


def _ready(selector: selectors.BaseSelector, deadline: float) -> list[tuple[selectors.SelectorKey, int]]:
    left = deadline - time.monotonic()
    ready = selector.select(left) if left > 0 else []
    if not ready:
        raise TimeoutError("no answer in time")
    return ready


def _ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # a set-uid prefix: not ours to kill. It ends with its own time limit
        pass
    if not _ended(process, time.monotonic() + 1.0):
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
