"""What sbatch answered. Pure."""

import re
from dataclasses import dataclass

_WORDS = re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?\s*$", re.MULTILINE)
_PARSABLE = re.compile(r"^(\d+)(?:;(\S+))?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Receipt:
    """`job_id` is None if nothing was submitted, or under `--quiet`. `died_of`: the signal that ended sbatch."""

    code: int
    job_id: str | None = None
    cluster: str | None = None
    died_of: int | None = None


def read_receipt(output: bytes, parsable: bool, code: int) -> Receipt:
    """The last line that has the form: a site's banner may come before it, on the same stream."""
    pattern = _PARSABLE if parsable else _WORDS
    found = pattern.findall(output.decode("utf-8", "replace"))
    if not found:
        return Receipt(code)
    job_id, cluster = found[-1]
    return Receipt(code, job_id, cluster or None)
