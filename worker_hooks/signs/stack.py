"""Where a rank stands: what `py-spy dump --json` and /proc say of its process, as one `stack.stuck` sign.

Shape of the answer: py-spy 0.4 (a list of threads, innermost frame first). Values of variables are never asked for.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker_hooks.signs.sign import Scalar, Sign

MOST_FRAMES = 12  # of a stack that is told; the innermost ones
MOST_THREADS = 4096
NAME_CHARS, PATH_CHARS, TEXT_CHARS = 120, 200, 900
FRAMES_CHARS = 2000  # within what a record takes
SLEEPS_UNINTERRUPTIBLY = "D"
_WCHAN = re.compile(r"[A-Za-z_][\w.]{0,63}")
_KERNEL_FRAME = re.compile(r"^\[<[0-9a-fx]+>\]\s+([A-Za-z_][\w.]{0,63})\+0x", re.MULTILINE)


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rsplit('/', 1)[-1]}:{self.line})"


@dataclass(frozen=True)
class KernelView:
    """One thread as the kernel tells it: `state` is the letter of /proc/PID/stat, `wchan` the kernel function that it
    sleeps in, `syscall` a number of this machine's table; "" and None where it may not be read."""

    state: str
    wchan: str = ""
    syscall: int | None = None
    thread: str = ""
    kernel_stack: tuple[str, ...] = ()


def python_stack(text: str, pid: int) -> tuple[str, tuple[Frame, ...]]:
    """-> (name, frames, innermost first) of the main thread. ValueError where it is not what py-spy says."""
    try:
        threads = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(threads, list):
        raise ValueError("no list of threads")
    for thread in threads[:MOST_THREADS]:
        if isinstance(thread, Mapping) and (
            thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
        ):
            frames = thread.get("frames")
            found = tuple(_frame(item) for item in frames[:MOST_FRAMES]) if isinstance(frames, list) else ()
            return _clean(thread.get("thread_name"), NAME_CHARS) or "MainThread", found
    raise ValueError("no main thread in it")


def _frame(item: Any) -> Frame:
    if not isinstance(item, Mapping):
        raise ValueError("a frame is no object")
    line = item.get("line")
    number = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
    return Frame(_clean(item.get("name"), NAME_CHARS), _clean(item.get("filename"), PATH_CHARS, last=True), number)


def _clean(value: Any, most: int, last: bool = False) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(c if c.isprintable() else "?" for c in (text[-most:] if last else text[:most]))


def kernel_view(stat: str, wchan: str = "", syscall: str = "", kernel_stack: str = "") -> KernelView:
    """From the texts of /proc/PID/task/TID/{stat, wchan, syscall, stack}. ValueError where `stat` is none."""
    fields = stat_fields(stat)
    number = syscall.split(" ", 1)[0].strip()
    name = wchan.strip()
    return KernelView(
        state=fields[0],
        wchan=name if _WCHAN.fullmatch(name) else "",
        syscall=int(number) if number.isdecimal() and len(number) < 6 else None,
        thread=_clean(stat[stat.index("(") + 1 : stat.rindex(")")], 16),
        kernel_stack=tuple(_KERNEL_FRAME.findall(kernel_stack)[:MOST_FRAMES]),
    )


def stat_fields(stat: str) -> list[str]:
    """The fields behind the name, which may hold blanks and brackets: state, parent, ... ValueError."""
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or "(" not in stat:
        raise ValueError("not a line of /proc/PID/stat")
    return fields


def stack_sign(
    rank: int, pid: int, frames: tuple[Frame, ...], kernel: KernelView, node: str, at: float, **more: Scalar
) -> Sign:
    """`more`: further attributes. The raw line is what a person reads."""
    where = f"state {kernel.state}" + (f" in {kernel.wchan}" if kernel.wchan else "")
    if kernel.thread and kernel.state == SLEEPS_UNINTERRUPTIBLY:
        where += f" (thread {kernel.thread})"
    stack = " < ".join(map(str, frames))
    text = (stack or where)[:TEXT_CHARS]
    attrs: dict[str, Scalar] = {"text": text, "state": kernel.state, "pid": pid, **more}
    if kernel.wchan:
        attrs["wchan"] = kernel.wchan
    if kernel.syscall is not None:
        attrs["syscall"] = kernel.syscall
    if kernel.kernel_stack:
        attrs["kernel_stack"] = " < ".join(kernel.kernel_stack)
    if frames:
        attrs |= {"function": frames[0].function, "file": frames[0].file, "line": frames[0].line}
        attrs["frames"] = "\n".join(f"{f.function}\t{f.file}" for f in frames)[:FRAMES_CHARS]
    raw = f"rank {rank} (pid {pid}): {where}" + (f"; {text}" if stack else "; no Python frames")
    return Sign("stack.stuck", raw, "process", "stacks", node, rank, at, attrs)
