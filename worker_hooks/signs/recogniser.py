"""How a log is read: the engine (`log`) finds the few lines that hold a trigger, recognisers make signs of them."""

from dataclasses import dataclass
from typing import Protocol

from worker_hooks.signs.sign import Sign


@dataclass(frozen=True)
class Line:
    """One line, cleaned (no colours, no NUL, valid text, cut). `raw`: all of it; `text`: behind the prefixes that
    launchers, loggers and the kernel put in front. `at`, `node`, `rank`: from those prefixes, else what the reader was
    told; `local_rank` where a prefix names only that. `number`: of the line in its log, from 1."""

    raw: str
    text: str
    number: int
    source: str
    at: float | None = None
    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None


class Recogniser(Protocol):
    """`triggers`: literals; every line that it can read holds at least one of them. Few and rare ones: each costs a
    search through every byte. `read` is given every line that holds a trigger of *any* recogniser, in order, and may
    keep a bounded memory of earlier ones (a table, a message over several lines); `close` gives what is left.

    A recogniser may also have `frequent`, literals of lines that may be most of a log (steps, progress bars): of a long
    log it is given only a sample of those."""

    triggers: tuple[bytes, ...]

    def read(self, line: Line) -> list[Sign]: ...

    def close(self) -> list[Sign]: ...
