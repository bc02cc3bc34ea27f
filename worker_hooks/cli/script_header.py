"""`#SBATCH` and `#RELUME` lines of a batch script. Pure.

Both count only before the first line that is neither blank nor a comment, and are split into words as sbatch splits
them (tried): quotes join, a backslash takes the next character as it is, "#" outside of quotes ends the line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from worker_hooks.cli.sbatch_options import CommandLine, read_directives

KEYS = ("name", "checkpoint-root", "url", "require")
YES, NO = ("", "yes", "true", "1"), ("no", "false", "0")
BLANKS = " \t\v\f\r"
_SEPARATORS = ("hetjob", "packjob")


class HeaderError(ValueError):
    """A `#RELUME` line that cannot be understood; the text names the line."""


@dataclass
class Header:
    """`sbatch` holds the options of all `#SBATCH` lines as one command line, `relume` the `#RELUME` keys: a het job is
    one training job, so they hold for all of its components, wherever they stand."""

    sbatch: CommandLine = field(default_factory=lambda: CommandLine([]))
    relume: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Said:
    value: str
    line: int
    component: int


def read_header(script: bytes) -> Header:
    """Raises HeaderError. What is wrong with a `#SBATCH` line is left for sbatch to complain about."""
    words: list[str] = []
    said: dict[str, _Said] = {}
    for number, line in _comment_lines(script):
        if line.startswith("#SBATCH"):
            words += split_words(line.removeprefix("#SBATCH"))
        elif line.startswith("#RELUME"):
            for item in split_words(line.removeprefix("#RELUME")):
                _directive(item, number, words.count(":"), said)
    settings = {key: found.value for key, found in said.items() if found.value != "no"}
    return Header(read_directives(words), settings)


def _comment_lines(script: bytes) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(script.split(b"\n"), 1):
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if line.strip(BLANKS) and not line.lstrip(BLANKS).startswith("#"):
            return
        yield number, line


def split_words(text: str) -> list[str]:
    """The words of one directive line; `hetjob` outside of quotes becomes ":". An open quote ends with the line."""
    words: list[str] = []
    word, quote, quoted, escaped = "", "", False, False
    for character in [*text, "\n"]:
        if escaped and (quote or character not in BLANKS + "\n"):
            word, escaped = word + character, False
        elif character == "\\":
            escaped = True
        elif quote and character != "\n":
            word, quote = (word, "") if character == quote else (word + character, quote)
        elif character in "'\"":
            quote, quoted = character, True
        elif character in BLANKS + "\n#":
            if word:
                words.append(":" if word in _SEPARATORS and not quoted else word)
            if character == "#":
                break
            word, quoted, escaped = "", False, False
        else:
            word += character
    return words


def _directive(item: str, line: int, component: int, said: dict[str, _Said]) -> None:
    """The last one counts, as with sbatch; but two components that want different things want two training jobs."""
    key, equals, value = item.partition("=")
    key = key.replace("_", "-")
    known = value in YES + NO if key == "require" else key in KEYS and equals and value
    if not known:
        raise HeaderError(f"line {line}: #RELUME {item}: expected one of {', '.join(KEYS)}, as key=value")
    if key == "require":
        value = "no" if value in NO else "yes"
    before = said.get(key)
    if before is not None and before.component != component and before.value != value:
        raise HeaderError(
            f"line {line}: #RELUME {item}: line {before.line} says {key}={before.value} for another component, "
            "but a het job is one training job"
        )
    said[key] = _Said(value, line, component)
