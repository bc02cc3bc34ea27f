"""Lines of a job's log, read for their signs."""

from typing import Any

from worker_hooks.signs.log import read_lines
from worker_hooks.signs.sign import Sign


def read(*lines: str, **where: Any) -> list[Sign]:
    return read_lines("job", lines, **where)


def one(line: str, code: str) -> Sign:
    signs = [sign for sign in read(line) if sign.code == code]
    assert len(signs) == 1, (code, read(line))
    return signs[0]
