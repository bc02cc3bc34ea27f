"""`#SBATCH` and `#RELUME` lines of a batch script. Pure.

Both count only before the first line that is neither blank nor a comment, as sbatch reads them.
"""

import shlex
from dataclasses import dataclass, field

from worker_hooks.cli.sbatch_options import CommandLine, read_command_line

KEYS = ("name", "checkpoint-root", "url", "require")


class HeaderError(ValueError):
    """A `#RELUME` line that cannot be understood; the text names the line."""


@dataclass
class Header:
    """`sbatch` holds the options of all `#SBATCH` lines as one command line, `relume` the `#RELUME` keys."""

    sbatch: CommandLine = field(default_factory=lambda: CommandLine([]))
    relume: dict[str, str] = field(default_factory=dict)
    het: bool = False


def read_header(script: bytes) -> Header:
    """Raises HeaderError. A `#SBATCH` line that does not split is left for sbatch to complain about."""
    words: list[str] = []
    header = Header()
    for number, raw in enumerate(script.split(b"\n"), 1):
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words += _split(line.removeprefix("#SBATCH"))
        elif line.startswith("#RELUME"):
            _directive(line.removeprefix("#RELUME"), number, header)
    header.het = any(word in ("hetjob", "packjob") for word in words)
    header.sbatch = read_command_line([word for word in words if word not in ("hetjob", "packjob")])
    return header


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


def _directive(text: str, number: int, header: Header) -> None:
    for item in _split(text):
        key, equals, value = item.partition("=")
        key = key.replace("_", "-")
        if key not in KEYS or not (equals or key == "require"):
            raise HeaderError(f"line {number}: #RELUME {item}: expected one of {', '.join(KEYS)}, as key=value")
        header.relume[key] = value if equals else "yes"
