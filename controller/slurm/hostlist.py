"""Slurm host lists: `gpu[001-003,010],login1` to names and back.

Order is kept as written when expanding: it can carry rank meaning. A list that cannot be read is an error, because a
guessed host would be excluded or drained in earnest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import product

_ABSENT = frozenset({"", "(null)", "null", "none", "(none)", "none assigned", "n/a"})
_TEXT = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_LAST_NUMBER = re.compile(r"(.*?)(\d{1,9})", re.ASCII)
_LIMIT = 1 << 20  # names; Slurm itself stops at 64 k per range


def expand(text: str | None) -> list[str]:
    """The names in `text`, in its order, repetitions kept; [] for Slurm's words for "no value".

    ValueError when malformed: open, nested or empty brackets, empty items, ranges that run backwards.
    """
    if text is None or text.strip().lower() in _ABSENT:
        return []
    names: list[str] = []
    for item in _items(text):
        for name in _expand_item(item, text):
            names.append(name)
            if len(names) > _LIMIT:
                raise ValueError(f"more than {_LIMIT} hosts in {text[:80]!r}")
    return names


def fold(names: Iterable[str]) -> str:
    """The shortest usual spelling of `names`: each once, numbers in order, groups in order of first appearance.

    Only a number at the very end of a name is folded: every Slurm reads that. ValueError for what is not a host name.
    """
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        if not _TEXT.fullmatch(name):
            raise ValueError(f"not a host name: {name!r}")
        numbered = _LAST_NUMBER.fullmatch(name)
        prefix, number = numbered.groups() if numbered else (name, "")
        groups.setdefault(prefix, {})[number] = None
    return ",".join(_fold_group(prefix, list(numbers)) for prefix, numbers in groups.items())


def _items(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth = start = 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
        if depth not in (0, 1):
            raise ValueError(f"unbalanced or nested brackets in host list {text[:200]!r}")
    if depth:
        raise ValueError(f"unclosed bracket in host list {text[:200]!r}")
    yield text[start:].strip()


def _expand_item(item: str, whole: str) -> Iterator[str]:
    pieces: list[list[str]] = []
    for found in _PIECE.finditer(item):
        inside, plain = found.groups()
        if plain is None:
            pieces.append(_numbers(inside, whole))
            if math.prod(map(len, pieces)) > _LIMIT:
                raise ValueError(f"more than {_LIMIT} hosts in {whole[:80]!r}")
        elif _TEXT.fullmatch(plain):
            pieces.append([plain])
        else:
            raise ValueError(f"{plain!r} is no part of a host name in {whole[:200]!r}")
    if not pieces:
        raise ValueError(f"empty item in host list {whole[:200]!r}")
    return ("".join(parts) for parts in product(*pieces))


def _numbers(inside: str, whole: str) -> list[str]:
    """`001-003,010`: the width is that of the lower bound as written."""
    numbers: list[str] = []
    for part in inside.split(","):
        found = _RANGE.fullmatch(part)
        if not found:
            raise ValueError(f"{part!r} is no range in host list {whole[:200]!r}")
        low, high = found.group(1), found.group(2) or found.group(1)
        if int(high) < int(low):
            raise ValueError(f"range {part!r} runs backwards in host list {whole[:200]!r}")
        if int(high) - int(low) + len(numbers) > _LIMIT:
            raise ValueError(f"more than {_LIMIT} hosts in {whole[:80]!r}")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def _fold_group(prefix: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0]
    plain = [prefix] if "" in numbers else []
    ranges = _ranges([number for number in numbers if number])
    if len(ranges) == 1 and "-" not in ranges[0]:
        return ",".join([*plain, prefix + ranges[0]])
    return ",".join([*plain, f"{prefix}[{','.join(ranges)}]"])


def _ranges(numbers: list[str]) -> list[str]:
    """Runs of numbers that one range spells exactly: the next one as its lower bound's width would print it."""
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda text: (int(text), len(text))):
        following = str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])) if runs else None
        if number == following:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
