"""Runs sbatch so that nobody can tell the difference: output, signals, closed streams, the way it ends."""

import errno
import os
import re
import resource
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from worker_hooks.cli.receipt import Receipt, read_receipt
from worker_hooks.cli.sbatch_options import BUILT_IN, Table, read_help
from worker_hooks.cli.script_text import memory_file

NOT_FOUND = 127
HELP_LIMIT_S = 5.0
KEPT_BYTES = 1 << 16
LOOK_S = 0.5
# Sent to the wrapper alone they are meant for sbatch, which dies of them (tried); from a terminal it has them already.
FORWARDED = tuple(getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"))
_NOT_FOR_US = re.compile(r"^(SBATCH|SLURM)_(?!CONF)")


def say(text: str) -> None:
    """One line of ours on standard error; who closed it does not want to know."""
    with suppress(OSError):
        os.write(2, f"relume: {text}\n".encode(errors="replace"))


def keep_standard_streams() -> None:
    """A closed standard stream's number would go to the next file that is opened, and our words into that file. What
    takes its place is closed again for sbatch."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the lowest free number is this one


def installed_options(environ: Mapping[str, str]) -> Table:
    """What the installed sbatch lists, plugins' options too; the built-in table if it does not say in time."""
    try:
        done = subprocess.run(
            ["sbatch", "--help"],
            env={name: value for name, value in environ.items() if not _NOT_FOR_US.match(name)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=HELP_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return BUILT_IN
    return read_help(done.stdout.decode("utf-8", "replace"))


@dataclass
class _Forwarder:
    """Passes signals on to sbatch; those that come before it runs as soon as it does. Who was started with a signal
    ignored (nohup, a shell's background job) goes on ignoring it, and so does sbatch."""

    process: "subprocess.Popen[bytes] | None" = None
    early: list[int] = field(default_factory=list)

    def install(self) -> None:
        # Handlers, not SIG_IGN: sbatch must start with the signals as they were.
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._forward)

    def attach(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        for number in self.early:
            process.send_signal(number)

    def _forward(self, number: int, _frame: object) -> None:
        if self.process is None:
            self.early.append(number)
        else:
            self.process.send_signal(number)


def call_sbatch(
    argv: Sequence[str], environ: Mapping[str, str], stdin: bytes | None, parsable: bool = False
) -> Receipt:
    """Run sbatch, pass its output on as it comes, and read the job id in it. No time limit: `--wait` may take days."""
    forwarder = _Forwarder()
    forwarder.install()
    script = None if stdin is None else memory_file("script", stdin)
    output, theirs = _output_for_child()
    try:
        process = subprocess.Popen(
            ["sbatch", *argv],
            env=dict(environ),
            stdin=script,
            stdout=theirs,
            close_fds=False,  # what the caller handed down is sbatch's too; our own are closed on exec anyway
        )
    except OSError as error:
        say(f"sbatch cannot be run: {error.strerror}")
        return Receipt(NOT_FOUND)
    finally:
        os.close(theirs)
    forwarder.attach(process)
    text, cut_off = _pass_on(output, process)
    code = process.wait()
    # Without a reader sbatch itself would have died at the end, when it writes (tried).
    died_of = -code if code < 0 else signal.SIGPIPE if cut_off else None
    return replace(read_receipt(text, parsable, 128 + died_of if died_of else code), died_of=died_of)


def die_of(number: int) -> None:
    """End as sbatch ended, so that a shell sees the same. Returns only if the signal cannot be raised."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _output_for_child() -> tuple[int, int]:
    """(our end, sbatch's end). On a terminal sbatch must find one too, to write line by line, also with --wait."""
    if not os.isatty(1):
        return os.pipe()
    import tty

    ours, theirs = os.openpty()
    tty.setraw(theirs)
    return ours, theirs


def _pass_on(output: int, process: "subprocess.Popen[bytes]") -> tuple[bytes, bool]:
    """Copy to standard output until the end; (the last 64 KiB, whether the reader went away). What sbatch may have left
    running with its output open is not waited for."""
    seen, cut_off = b"", False
    while True:
        ended = process.poll() is not None
        if not select.select([output], [], [], 0.0 if ended else LOOK_S)[0]:
            if ended:
                break
            continue
        try:
            data = os.read(output, KEPT_BYTES)
        except OSError:  # how a terminal says that its other end is closed
            data = b""
        if not data:
            break
        seen = (seen + data)[-KEPT_BYTES:]
        cut_off = cut_off or not _write(data)
    os.close(output)
    return seen, cut_off


def _write(data: bytes) -> bool:
    """False if the reader is gone; a disk that is full loses the words, as with sbatch."""
    while data:
        try:
            data = data[os.write(1, data) :]
        except BlockingIOError:
            select.select([], [1], [])
        except OSError as error:
            return error.errno != errno.EPIPE
    return True
