"""What ranks of a failed attempt left in the run folder: torchrun's error files and flight recorder dumps, as signs.

The ranks write these files, so nothing in them is trusted: regular files only, bounded in size, read on a thread of its
own in a bounded time; a pickle that would run code is refused and reported. Only the names that the agent gave to its
ranks are read: what the user sent elsewhere is the user's.
"""

import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from worker_hooks.signs.flight_recorder import read_dump, refused
from worker_hooks.signs.log import JOB, LogReader
from worker_hooks.signs.sign import Sign

RECORDED = 2000  # operations of a rank that its flight recorder remembers: torch's own default where it has one
ERROR_BYTES = 4 << 20
ERROR_LINES, ERROR_CHARS = 200, 65536
DUMP_BYTES = 32 << 20
MOST_GROUPS = 64  # process groups of one rank
MOST_RANKS = 256  # of a node
_NAME = re.compile(r"(?:error-(\d{1,7})\.json|fr-dump_(\d{1,7}))")


class Report(Protocol):
    """`Telemetry.event`."""

    def __call__(self, name: str, rank: int | None = None, urgent: bool = False, **data: int) -> None: ...


def error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"


def dump_file(folder: Path, rank: int) -> Path:
    return folder / f"fr-dump_{rank}"


def rank_settings(environ: Mapping[str, str], folder: Path, rank: int) -> dict[str, str]:
    """Where a rank leaves its remains. A variable that the user set stays, under its old name and its new one: torch
    has two for some, and newer versions warn once that they found the old one, which older versions need."""
    wanted = (
        (("TORCHELASTIC_ERROR_FILE",), str(error_file(folder, rank))),
        (("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), str(RECORDED)),
        (("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), str(folder / "fr-dump_")),
        (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"),
    )
    return {name: value for names, value in wanted if not any(name in environ for name in names) for name in names}


def ranks_in(folder: Path) -> list[int]:
    """Whose remains are there. Raises OSError."""
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted({int(match[1] or match[2]) for match in found if match is not None})[:MOST_RANKS]


class Remains:
    """`give` gets each sign; `report` says how many process groups were left out; `say` writes to the job's log."""

    def __init__(
        self, folder: Path, node: str, give: Callable[[Sign], None], report: Report, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._node = node
        self._give = give
        self._report = report
        self._say = say
        self._lock = threading.Lock()
        self._over = False
        self._open: list[int] = []  # ranks with a dump of which nothing is told yet
        self._failure = ""

    def tell(self, ranks: Sequence[int], failed: Iterable[int], limit_s: float) -> None:
        """Signs of the error files of `failed` and the dumps of `ranks`. A dump that is there and not read after
        `limit_s` seconds is told as refused; nothing is told after the return."""
        reading = threading.Thread(target=self._run, args=(ranks, tuple(failed)), name="relume-remains", daemon=True)
        reading.start()
        reading.join(limit_s)
        with self._lock:
            self._over = True
        for rank in self._open:
            self._give(refused(self._failure or f"not read within {limit_s:g} s", rank, self._node))

    def _run(self, ranks: Sequence[int], failed: Sequence[int]) -> None:
        try:
            there = frozenset(self._folder.iterdir())
            self._open = [rank for rank in ranks if dump_file(self._folder, rank) in there]
            for rank in failed:
                if error_file(self._folder, rank) in there:
                    self._tell(self._error_signs(rank))
            for rank in tuple(self._open):
                self._tell(self._dump_signs(rank), dump_of=rank)
        except Exception as error:  # the attempt ends all the same
            self._failure = f"{type(error).__name__}: {error}"
            self._say(f"what the ranks left behind could not be read: {self._failure}")

    def _tell(self, signs: Sequence[Sign], dump_of: int | None = None) -> None:
        with self._lock:
            if self._over:
                return
            if dump_of is not None:
                self._open.remove(dump_of)
                left_out = len(signs) - MOST_GROUPS
                if left_out > 0:
                    self._report("signs_left_out", dump_of, signs=left_out, unread_bytes=0)
            for sign in signs[:MOST_GROUPS]:
                self._give(sign)

    def _error_signs(self, rank: int) -> list[Sign]:
        try:
            data, written_at = _read(error_file(self._folder, rank), ERROR_BYTES)
            text = error_text(data)
        except _UnreadableError as error:
            self._say(f"the error file of rank {rank} is not read: {error}")
            return []
        offset_s = time.localtime().tm_gmtoff
        reader = LogReader(JOB, node=self._node, rank=rank, source="torchrun", utc_offset_s=offset_s, whole=True)
        return reader.feed(text.encode("utf-8", "replace") + b"\n", written_at) + reader.close()

    def _dump_signs(self, rank: int) -> list[Sign]:
        """Groups in which something waits come first."""
        try:
            data, written_at = _read(dump_file(self._folder, rank), DUMP_BYTES)
        except _UnreadableError as error:
            return [refused(str(error), rank, self._node)]
        signs = read_dump(data, rank, self._node, written_at)
        return sorted(signs, key=lambda sign: not sign.attrs.get("waiting"))


class _UnreadableError(Exception):
    """A file that is not read; the text says why."""


def error_text(data: bytes) -> str:
    """The last lines of the traceback in an error file, and the message where the traceback does not hold it."""
    try:
        message = json.loads(data).get("message")
    except (ValueError, RecursionError, AttributeError):
        raise _UnreadableError("it is not what torchrun writes") from None
    stack: object = None
    if isinstance(message, dict):
        more = message.get("extraInfo")
        stack = more.get("py_callstack") if isinstance(more, dict) else None
        message = message.get("message")
    parts = [part for part in (stack, message) if isinstance(part, str)]
    if len(parts) == 2 and parts[1] in parts[0]:
        parts.pop()
    lines = "\n".join(parts)[-ERROR_CHARS:].splitlines()
    return "\n".join(lines[-ERROR_LINES:])


def _read(path: Path, limit: int) -> tuple[bytes, float]:
    """A regular file and when it was last written. Raises _UnreadableError; waits for no writer of a pipe."""
    try:
        with open(path, "rb", opener=_careful) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _UnreadableError("it is no regular file")
            data = file.read(limit + 1) if status.st_size <= limit else b""
    except OSError as error:
        raise _UnreadableError(error.strerror or type(error).__name__) from None
    if status.st_size > limit or len(data) > limit:
        raise _UnreadableError(f"larger than {limit >> 20} MiB")
    return data, status.st_mtime


def _careful(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
