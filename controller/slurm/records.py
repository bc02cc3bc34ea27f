"""What all lists of `scontrol --oneliner show` have in common: records that begin with a name, words `Key=value`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from controller.errors import SlurmUnreadable


def split(text: str, start: re.Pattern[str], nothing: str) -> list[str]:
    """The records of `text`. SlurmUnreadable when it is neither records nor Slurm's text for `nothing`."""
    before, *records = start.split(text)
    if before.strip() not in ("", nothing) or not text.strip():
        raise SlurmUnreadable("Slurm's answer is no list of records", text=text[:2000])
    return [record.removesuffix("\n") for record in records]


@contextmanager
def reading(record: str) -> Iterator[None]:
    """What cannot be read inside is SlurmUnreadable, with the record's text."""
    try:
        yield
    except (ValueError, KeyError) as wrong:
        raise SlurmUnreadable(f"record: {wrong!r}", text=record[:2000]) from wrong


def plain_fields(text: str) -> dict[str, str]:
    """Attributes whose values hold no blank."""
    return {key: value for key, equals, value in (word.partition("=") for word in text.split()) if equals}
