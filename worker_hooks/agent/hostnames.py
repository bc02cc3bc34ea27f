"""The node names behind a Slurm host list such as `gpu[1-3,07],login`, for the generation file. Pure.

Slurm itself wrote the list into this job's environment, so this only has to read well-formed ones; the controller's
parser is the strict one.
"""

import re
from itertools import product

_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKET = re.compile(r"\[([^\]]*)\]")


def expand(text: str) -> tuple[str, ...]:
    """Every name, in order; a list that cannot be read stays one name."""
    names: list[str] = []
    for part in _PART.findall(text):
        pieces = _BRACKET.split(part)
        choices = [[piece] if i % 2 == 0 else _ranges(piece) for i, piece in enumerate(pieces)]
        names += ["".join(chosen) for chosen in product(*choices)] or [part]
    return tuple(names)


def _ranges(text: str) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return []
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return numbers
