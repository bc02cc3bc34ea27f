"""What all lists of `scontrol --oneliner show` have in common: records that begin with a name, words `Key=value`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from controller.errors import SlurmUnreadable


def split(text: str, name: str, nothing: str) -> list[str]:
    """The records of `text`, each beginning with `name=`. SlurmUnreadable when it is neither records nor Slurm's text
    for `nothing`."""
    if text.strip() == nothing:
        return []
    first, *more = text.removesuffix("\n").split(f"\n{name}=")
    if not first.startswith(f"{name}="):
        raise SlurmUnreadable("Slurm's answer is no list of records", text=text[:2000])
    return [first, *(f"{name}={record}" for record in more)]


@contextmanager
def reading(record: str) -> Iterator[None]:
    """What cannot be read inside is SlurmUnreadable, with the record's text."""
    try:
        yield
    except (ValueError, KeyError) as wrong:
        raise SlurmUnreadable(f"record: {wrong!r}", text=record[:2000]) from wrong


def plain_fields(text: str) -> dict[str, str]:
    """Attributes whose values hold no blank. Most are the same in thousands of records: each text is kept once."""
    words = (word.partition("=") for word in text.split())
    return {sys.intern(key): sys.intern(value) for key, equals, value in words if equals}
