"""How processes ended, in the words of launchers, shells and crash handlers."""

import re

from worker_hooks.signs.found import Found, pattern, sign, whole
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign
from worker_hooks.signs.system_texts import SIGNALS, signal_of

_SIGNAL = "|".join(SIGNALS)
_PATTERNS = (
    pattern(
        "process.exit",
        "failed (exitcode",
        r"failed \(exitcode: (?P<exit_code>-?\d+)\)(?: local_rank: (?P<local_rank>\d+))?(?: "
        r"\(pid: (?P<pid>\d+)\))?",
    ),
    pattern("process.exit", "return code", r"exits with return code = (?P<exit_code>-?\d+)"),
    pattern(
        "process.exit", "died from signal", r"(?P<host>[\w.-]+): rank (?P<rank>\d{1,7}) died from signal (?P<name>\d+)"
    ),
    pattern("process.exit", "Fatal Python error", r"Fatal Python error: (?P<name>" + _SIGNAL + ")"),
    pattern("process.exit", "aught signal", r"[Cc]aught signal (?P<name>\d+)"),
    pattern("process.exit", ": line ", r": line \d+: +(?P<pid>\d+) (?P<name>" + _SIGNAL + r")\b"),
    pattern("torchrun.closing", "closing signal", r"Sending process (?P<pid>\d+) closing signal (?P<name>\w+)"),
    pattern(
        "torchrun.closing",
        "forcefully",
        r"shutdown process (?P<pid>\d+) via .{0,20}forcefully exiting via (?P<name>[\w.]+)",
    ),
    pattern("signal.received", "death signal", r"Received (?P<name>[\w.]+) death signal"),
    pattern("signal.received", "ypassing SIG", r"[Bb]ypassing (?P<name>SIG\w+)", ignored=True),
    pattern("signal.received", "eceived SIG", r"(?:\[rank:? ?(?P<rank>\d{1,7})\] )?[Rr]eceived (?P<name>SIG[A-Z]+\d?)"),
    pattern(
        "signal.received",
        "SIGTERM",
        r"(?:exiting program after receiving|got|caught|Caught|Got|handling|on signal) (?:signal "
        r")?(?P<name>SIGTERM)",
    ),
    pattern("signal.received", "auto-requeue signal", r"Handling auto-requeue signal: (?P<name>\d+)"),
)


class Exits:
    triggers: tuple[bytes, ...] = (
        *(b"exitcode", b"return code", b"died from signal", b"rror", b"aught signal", b": line ", b"SIGTERM"),
        *(b"death signal", b"ypassing SIG"),
    )

    def read(self, line: Line) -> list[Sign]:
        # The rank of Lightning's `[rank: 0] Received SIGTERM` may have been taken off: the line has it.
        for one in _PATTERNS:
            found = one.find(line.text)
            if found is not None:
                return [sign(line, _ended(found))]
        return []

    def close(self) -> list[Sign]:
        return []


def _ended(found: Found) -> Found:
    """The signal as a number: from its name, or from a negative exit code."""
    attrs: dict[str, Scalar] = {name: value for name, value in found.attrs.items() if name not in ("name", "host")}
    number = signal_of(str(found.attrs.get("name", "")))
    code = attrs.get("exit_code")
    if number is None and isinstance(code, int) and -65 < code < 0:
        number = -code
    if number is not None:
        attrs["signal"] = number
    if found.code == "process.exit" and found.node:
        attrs["host"] = found.node
    return Found(found.code, attrs, found.rank, found.node)


def exit_of(text: str) -> dict[str, Scalar]:
    """Exit code and pid of `-9 (pid: 1460)`; a signal is a negative code."""
    match = re.match(r"(?P<code>-?\d+)(?: *\(pid: (?P<pid>\d+)\))?", text.strip())
    code = whole(match["code"]) if match else None
    if match is None or code is None:
        return {}
    attrs: dict[str, Scalar] = {"exit_code": code}
    if -65 < code < 0:
        attrs["signal"] = -code
    if match["pid"] and (pid := whole(match["pid"])) is not None:
        attrs["pid"] = pid
    return attrs
