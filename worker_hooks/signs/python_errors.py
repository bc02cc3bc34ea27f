"""Exceptions of Python programs: the last line of a traceback, and what it repeats.

A user's ValueError and a RuntimeError that only tells a collective's failure again are told apart by `repeats`: the
code of the sign that the same line gave.
"""

import re

from worker_hooks.signs.found import Found, short, sign, whole
from worker_hooks.signs.reasons import reasons
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign
from worker_hooks.signs.system_texts import signal_of

_MARKS = r"^(?:\| +|\+ )*"  # of an exception group
_NAMES = (
    r"(?:Error|Exception|Interrupt|SystemExit|Timeout|ExceptionGroup|StopIteration|"
    r"GeneratorExit|BadZipFile|ArrowInvalid|IncompleteRead|BrokenProcessPool|Empty)"
)
_LINE = re.compile(
    _MARKS
    + r"(?P<module>(?:[A-Za-z_]\w*\.){0,12})(?P<type>(?:[A-Z_]\w{0,80}?)?"
    + _NAMES
    + r"|error|timeout|gaierror|herror|Exit|Abort)(?:\((?P<inner>\w+)\))?(?:: ?(?P<text>.*)|(?P<bare>))$"
)
_ERRNO = re.compile(r"\[Errno (-?\d{1,6})\]")
_LOADER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+)[\d, ]*\) (?:is killed by signal: "
    r"(?P<signal>[A-Z][\w ]*?)\.|exited unexpectedly)"
)
_SPAWNED = re.compile(
    r"[Pp]rocess (?P<local>\d+) (?:terminated with (?:signal (?P<signal>SIG\w+)|exit code "
    r"(?P<code>-?\d+))|got signal: (?P<got>\d+))"
)

_IMPORT = frozenset({"ImportError", "ModuleNotFoundError"})
# Launchers and pools that tell of a child's end: whose fault it was stands elsewhere.
_WRAPPERS = {
    "ChildFailedError": "torchrun.failure",
    "ProcessRaisedException": "process.exit",
    "ProcessExitedException": "process.exit",
    "CalledProcessError": "process.exit",
    "BrokenProcessPool": "process.exit",
    "RayActorError": "process.exit",
    "ActorDiedError": "process.exit",
    "WorkerCrashedError": "process.exit",
    "ConnectionResetError": "connection.lost",
    "ConnectionRefusedError": "connection.lost",
    "ConnectionAbortedError": "connection.lost",
    "BrokenPipeError": "connection.lost",
    "SignalException": "signal.received",
    "KeyboardInterrupt": "signal.received",
}
# Too plain to be exceptions of Python without a module in front: shells and tools print them too.
_NEEDS_MODULE = frozenset({"Error", "error", "timeout", "gaierror", "herror", "Exit", "Abort", "Timeout", "Empty"})


class PythonErrors:
    triggers: tuple[bytes, ...] = (b"rror", b"xception", b"KeyboardInterrupt", b"SystemExit")

    def read(self, line: Line) -> list[Sign]:
        match = exception(line.text)
        if match is None:
            return []
        module, kind, text = match
        more = _loader(text) or _child(kind, text)
        found = reasons(line.text)
        repeats = (more or found)[0].code if more or found else _WRAPPERS.get(kind, "")
        return [*(sign(line, one) for one in more), sign(line, _raised(module, kind, text, repeats))]

    def close(self) -> list[Sign]:
        return []


def exception(text: str) -> tuple[str, str, str] | None:
    """Module, class and text of an exception's line; None for any other line, and for warnings."""
    match = _LINE.match(text)
    if match is None:
        return None
    module, kind = match["module"].rstrip("."), match["inner"] or match["type"]
    if kind in _NEEDS_MODULE and not module:
        return None
    return module, kind, match["text"] or ""


def _raised(module: str, kind: str, text: str, repeats: str) -> Found:
    attrs: dict[str, Scalar] = {"type": kind, "text": short(text)}
    if kind in _IMPORT:
        return Found("python.import_error", attrs)
    if module:
        attrs["module"] = module
    number = _ERRNO.search(text)
    if number and (errno := whole(number[1])) is not None:
        attrs["errno"] = errno
    return Found("python.exception", attrs | ({"repeats": repeats} if repeats else {}))


def _loader(text: str) -> list[Found]:
    """A data loader's worker that died. Out of shared memory is said by the reasons."""
    match = _LOADER.search(text) if "DataLoader worker" in text else None
    if match is None:
        return []
    number = signal_of(match["signal"] or "")
    attrs: dict[str, Scalar] = {} if number is None else {"signal": number}
    if (pid := whole(match["pid"])) is not None:
        attrs["pid"] = pid
    return [Found("loader.killed", attrs)]


def _child(kind: str, text: str) -> list[Found]:
    """What a launcher's exception says of the process that ended, or of the signal that the launcher got."""
    if kind == "KeyboardInterrupt":
        return [Found("signal.received", {"signal": 2})]
    if _WRAPPERS.get(kind) == "connection.lost":
        number = _ERRNO.search(text)
        return [Found("connection.lost", {"errno": int(number[1])} if number else {})]
    match = _SPAWNED.search(text) if kind in _WRAPPERS else None
    if match is None:
        return []
    if match["got"]:
        return [Found("signal.received", {"signal": int(match["got"][:3])})]
    attrs: dict[str, Scalar] = {"local_rank": int(match["local"][:6])}
    if killed_by := signal_of(match["signal"] or ""):
        attrs |= {"signal": killed_by, "exit_code": -killed_by}
    elif (code := whole(match["code"] or "")) is not None:
        attrs["exit_code"] = code
    return [Found("process.exit", attrs)]
