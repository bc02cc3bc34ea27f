"""One row of knowledge, checked: every complaint names the file, the row and the column."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from controller.decision.meanings import ABOUT, ACTIONS, VERDICTS, WEIGHTS, Meaning
from worker_hooks.signs.sign import LAYERS

TEXT_CHARS = 2048
_CHOICES = {"layer": LAYERS, "about": ABOUT, "weight": WEIGHTS, "verdict": VERDICTS, "action": ACTIONS}
NEEDED = ("layer", "about", "weight", "verdict", "text")
COLUMNS = (*NEEDED, "action", "vendors")


class KnowledgeError(ValueError):
    """A table or an override that cannot be used; the text says which file, row and column, and what is expected."""


@dataclass(frozen=True)
class Place:
    """Where a row stands."""

    file: str
    row: str

    def error(self, column: str, text: str) -> KnowledgeError:
        return KnowledgeError(": ".join(part for part in (self.file, self.row, column, text) if part))


def table(value: object, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise place.error("", "expected a table of columns")
    return value


def only(row: Mapping[str, Any], allowed: Set[str], place: Place, why: str = "") -> None:
    for column in row:
        if column not in allowed:
            known = f"known here: {', '.join(sorted(allowed))}"
            raise place.error(str(column), f"unknown column; {why or known}")


def meaning(code: str, row: Mapping[str, Any], place: Place) -> Meaning:
    """All columns that a row needs, each of them right."""
    for column in NEEDED:
        if column not in row:
            raise place.error(column, "is missing")
    values = {column: text(row[column], column, place) for column in COLUMNS if column in row}
    return Meaning(code=code, **values)


def text(value: object, column: str, place: Place) -> str:
    if not isinstance(value, str):
        raise place.error(column, f"expected a text, got {type(value).__name__}")
    allowed = _CHOICES.get(column)
    if allowed is not None and value not in allowed:
        raise place.error(column, f"{value!r} is none of {', '.join(allowed)}")
    if len(value) > TEXT_CHARS or (column == "text" and not value.strip()):
        raise place.error(column, f"expected 1 to {TEXT_CHARS} characters")
    return value


def lines(value: object, column: str, place: Place) -> tuple[str, ...]:
    """Sample lines: at least one."""
    if not isinstance(value, list) or not value or not all(isinstance(line, str) and line.strip() for line in value):
        raise place.error(column, "expected a list of sample lines, at least one")
    return tuple(value)
