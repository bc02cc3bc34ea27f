"""Recognisers as tables: a literal that the line holds, a pattern, the code that it is."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worker_hooks.signs.reading import sign_of
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.sign import Scalar, Sign

_WHOLE_NUMBERS = frozenset({"pid", "cpu", "seconds", "port", "uid", "number"})


@dataclass(frozen=True)
class Row:
    """`pattern` is searched in the text of a line that holds `literal`. Its named groups become attributes (whole
    numbers where the attribute is one); `text`: the line's text is an attribute too. `more`: adds attributes, or
    refuses the line with None."""

    literal: str
    code: str
    pattern: re.Pattern[str]
    text: bool = False
    more: Callable[[re.Match[str]], Mapping[str, Scalar | None] | None] | None = None

    def sign(self, line: Line) -> Sign | None:
        match = self.pattern.search(line.text)
        if match is None:
            return None
        attrs: dict[str, Scalar | None] = {
            name: _whole(value) if name in _WHOLE_NUMBERS else value for name, value in match.groupdict().items()
        }
        if self.more is not None:
            more = self.more(match)
            if more is None:
                return None
            attrs.update(more)
        if self.text:
            attrs["text"] = line.text
        return sign_of(line, self.code, attrs)


def _whole(text: str | None) -> int | None:
    """None too where it is too long to be a number of ours."""
    return int(text) if text and len(text) < 19 else None


class RowReader:
    """The first row that fits gives the sign of a line."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.triggers: tuple[bytes, ...] = tuple(dict.fromkeys(row.literal.encode() for row in rows))
        self._rows = tuple(rows)

    def read(self, line: Line) -> list[Sign]:
        for row in self._rows:
            if row.literal in line.text:
                sign = row.sign(line)
                if sign is not None:
                    return [sign]
        return []

    def close(self) -> list[Sign]:
        return []
