"""Patterns of the site's own: rows of an override file that recognise lines which Relume does not know."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.decision.meanings import Meaning
from controller.knowledge.checks import COLUMNS, Place, lines, meaning, only, text
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import RAW_CHARS, Sign

CODE = re.compile(r"site(?:\.[a-z0-9_]{1,40}){1,4}")
_LEAST = 4  # characters of the literal that the search for candidate lines needs
_MOST = 500
_META = frozenset("^$*+?{}[]()|.")


@dataclass(frozen=True)
class SiteSignature:
    """`literals`: of every line that `pattern` fits, one for each alternative."""

    meaning: Meaning
    pattern: re.Pattern[str]
    literals: tuple[str, ...]


class SiteRecogniser:
    def __init__(self, signature: SiteSignature) -> None:
        self._signature = signature
        self.triggers: tuple[bytes, ...] = tuple(literal.encode() for literal in signature.literals)

    def read(self, line: Line) -> list[Sign]:
        if not any(literal in line.raw for literal in self._signature.literals):
            return []
        if not self._signature.pattern.search(line.text):
            return []
        row = self._signature.meaning
        return [
            Sign(
                row.code,
                line.raw[:RAW_CHARS],
                row.layer,
                line.source,
                line.node,
                line.rank,
                line.at,
                {"text": line.text[:300]},
            )
        ]

    def close(self) -> list[Sign]:
        return []


def site_signature(code: str, row: Mapping[str, Any], place: Place) -> SiteSignature:
    """A row of the site's own, with its samples tried."""
    if not CODE.fullmatch(code):
        raise place.error("", "no sign has this code; a row of your own is called site.<name>, in small letters")
    only(row, {*COLUMNS, "pattern", "yes", "no"}, place)
    row_meaning = meaning(code, {k: v for k, v in row.items() if k in COLUMNS}, place)
    if "pattern" not in row:
        raise place.error("pattern", "is missing")
    source = text(row["pattern"], "pattern", place)
    if len(source) > _MOST:
        raise place.error("pattern", f"longer than {_MOST} characters")
    try:
        pattern = re.compile(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise place.error("pattern", f"not a regular expression: {error}") from error
    signature = SiteSignature(row_meaning, pattern, _literals(source, place))
    _try(signature, row, place)
    return signature


def _try(signature: SiteSignature, row: Mapping[str, Any], place: Place) -> None:
    recogniser = SiteRecogniser(signature)
    for column, wanted in (("yes", True), ("no", False)):
        for sample in lines(row.get(column), column, place):
            if bool(recogniser.read(Line(sample, sample, 1, "job_log"))) is not wanted:
                says = "does not recognise" if wanted else "recognises"
                raise place.error(column, f"the pattern {says} {sample!r}")


def _literals(source: str, place: Place) -> tuple[str, ...]:
    found = [max(_runs(alternative), key=len, default="") for alternative in _alternatives(source)]
    if any(len(literal) < _LEAST for literal in found):
        raise place.error("pattern", f"each alternative needs {_LEAST} plain characters in a row that every line holds")
    return tuple(found)


def _alternatives(source: str) -> list[str]:
    """Split at each `|` outside of groups and classes."""
    parts: list[str] = []
    depth, start, in_class, i = 0, 0, False, 0
    while i < len(source):
        char = source[i]
        if char == "\\":
            i += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(source[start:i])
            start = i + 1
        i += 1
    return [*parts, source[start:]]


def _runs(source: str) -> list[str]:
    """Plain characters in a row outside of groups and classes; one that a quantifier makes optional is none. A pattern
    that begins with flags has no runs: upper and lower case may be the same to it."""
    if source.startswith("(?") and source[2:3].isalpha():
        return []
    runs: list[str] = []
    run, depth, in_class, i = "", 0, False, 0
    while i < len(source):
        char, width = source[i], 1
        plain = char not in _META
        if char == "\\":
            width, char = 2, source[i + 1 : i + 2]
            plain = not char.isalnum()
        if depth or in_class or not plain or source[i + width : i + width + 1] in ("?", "*", "{"):
            runs, run = [*runs, run], ""
            if width == 1:
                in_class = char != "]" if in_class else char == "["
                depth += 0 if in_class else (char == "(") - (char == ")")
        else:
            run += char
        i += width
    return [*runs, run]
