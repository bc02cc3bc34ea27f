"""What a recogniser of job logs finds in a text, and how a sign is made of it.

Tables of patterns are read from the top: the first that fits wins, so what is more specific stands first.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from worker_hooks.signs.reading import sign_of
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign

TEXT_CHARS = 300
# Attributes that are whole numbers wherever a line has them.
_WHOLE = frozenset(
    {"number", "errno", "pid", "local_rank", "exit_code", "signal", "status", "vendor_error", "opcode", "port", "gpu"}
    | {
        "sequence",
        "numel_in",
        "numel_out",
        "timeout_ms",
        "ran_ms",
        "seconds",
        "enqueued",
        "completed",
        "work",
        "events",
    }
    | {"step", "table"}
)


@dataclass(frozen=True)
class Found:
    """`rank`, `node`: only where the text itself names them."""

    code: str
    attrs: Mapping[str, Scalar] = field(default_factory=dict)
    rank: int | None = None
    node: str | None = None


@dataclass(frozen=True)
class Pattern:
    """`needle`: a literal of every text that `form` fits, looked for first because that is cheap. Named groups become
    attributes, but `rank` and `host` also say whose the sign is. `fixed`: attributes that are always the same."""

    code: str
    needle: str
    form: re.Pattern[str]
    fixed: Mapping[str, Scalar] = field(default_factory=dict)

    def find(self, text: str) -> Found | None:
        match = self.form.search(text) if self.needle in text else None
        if match is None:
            return None
        groups = match.groupdict()
        host = groups.get("host")
        rank = groups.pop("rank", None)
        return Found(
            self.code,
            {**attributes(groups), **self.fixed},
            int(rank) if rank else None,
            host if host and host.isascii() and "[" not in host else None,
        )


def pattern(code: str, needle: str, form: str, **fixed: Scalar) -> Pattern:
    return Pattern(code, needle, re.compile(form), fixed)


def first(patterns: Iterable[Pattern], text: str) -> Found | None:
    for one in patterns:
        found = one.find(text)
        if found is not None:
            return found
    return None


def attributes(groups: Mapping[str, str | None]) -> dict[str, Scalar]:
    """What was found, numbers as numbers; a number too long to be one is left out."""
    attrs: dict[str, Scalar] = {}
    for name, value in groups.items():
        if value is None:
            continue
        if name not in _WHOLE:
            attrs[name] = short(value)
        elif (number := whole(value)) is not None:
            attrs[name] = number
    return attrs


def whole(text: str) -> int | None:
    """A number as logs write it; counters without a value yet are printed as 2**64 - 1."""
    text = text.strip()
    if not 0 < len(text) <= 20 or not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
        return None
    number = int(text)
    return number - (1 << 64) if number >= 1 << 63 else number


def short(text: str) -> str:
    return text.strip()[:TEXT_CHARS]


def sign(line: Line, found: Found, *, prefer_own_rank: bool = False) -> Sign:
    """`prefer_own_rank`: the rank in front of the line wins over the one that the text names, which may count within a
    process group only."""
    named, own = found.rank, line.rank
    rank = own if named is None or (prefer_own_rank and own is not None) else named
    return sign_of(line, found.code, found.attrs, node=found.node, rank=rank)
