"""Small conversions that the text reader and the JSON reader share, so that both give the same facts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from controller.slurm.hostlist import expand

# Slurm's "no value" and "unlimited" of 16, 32 and 64 bits, where a command prints them as if they were numbers.
NO_VALUES = frozenset(str(2**bits - below) for bits in (16, 32, 64) for below in (1, 2))
_ABSENT = frozenset({"", "(null)", "n/a", "none", "unknown", "not_set"})


def present(text: str | None) -> str:
    """`text` without Slurm's words for "nothing"."""
    return "" if text is None or text.strip().lower() in _ABSENT else text.strip()


def moment(text: str | None, zone: tzinfo | None = None) -> datetime | None:
    """An epoch number, or the standard form where `zone` says what it means. None for "Unknown" and the like.

    ValueError for the standard form without a zone: guessing one would be wrong twice a year.
    """
    word = present(text)
    if not word or word == "0":
        return None
    if word.isdecimal():
        return datetime.fromtimestamp(int(word), UTC)
    local = datetime.fromisoformat(word)
    if local.tzinfo is None and zone is None:
        raise ValueError(f"a time without a zone: {word!r}")
    return (local if local.tzinfo else local.replace(tzinfo=zone)).astimezone(UTC)


def names(text: str | None) -> tuple[str, ...]:
    return tuple(expand(present(text)))


def words(text: str | None) -> tuple[str, ...]:
    """A comma list; "compute*" is sinfo's mark on the default partition."""
    return tuple(word.rstrip("*") for word in present(text).split(",") if word)


def number(text: str | None, default: int = 0) -> int:
    """The first number in `text` ("2-2" nodes is 2, "8.00" is 8); what Slurm prints for "no value" is none."""
    found = re.match(r"-?\d+", present(text))
    return int(found.group()) if found and found.group() not in NO_VALUES else default


def tres_per_node(text: str | None) -> str:
    """22.05 writes "gres:gpu:8" where newer ones write "gres/gpu:8"."""
    return re.sub(r"\bgres:", "gres/", present(text))


def job_id(raw_id: int, array_job_id: int | None, task: int | None, tasks: str) -> str:
    """Slurm's spelling, as squeue prints it and as every write takes it."""
    if array_job_id is None:
        return str(raw_id)
    if task is not None:
        return f"{array_job_id}_{task}"
    return f"{array_job_id}_[{tasks}]" if tasks else str(raw_id)


def exit_status(status: int) -> tuple[int, int]:
    """(code, signal) of a wait status; (0, 0) for Slurm's "none yet"."""
    if status > 0xFFFF:
        return 0, 0
    return (0, status & 0x7F) if status & 0x7F else (status >> 8, 0)
