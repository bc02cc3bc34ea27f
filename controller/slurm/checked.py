"""Arguments of writes, checked before they reach an adapter: nothing is guessed, nothing can carry a second command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from controller.slurm import hostlist, jobids

_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+\\-]*\$?", re.ASCII)


def job(job_id: str) -> str:
    """ValueError unless `job_id` is exactly what Slurm spells: no step, no cluster, no blanks."""
    target = jobids.parse(job_id).target
    if target != job_id:
        raise ValueError(f"not a job that can be written to: {job_id!r}")
    return target


def node(name: str) -> str:
    """ValueError unless it is one plain node name."""
    if hostlist.expand(name) != [name]:
        raise ValueError(f"not one node name: {name!r}")
    return name


def node_list(names: Sequence[str]) -> str:
    return hostlist.fold(node(name) for name in names)


def line(text: str) -> str:
    """One line of free text. ValueError when empty or with control characters: Slurm would store them, and every
    reader of its text output would stumble."""
    if not text.strip() or not text.isprintable():
        raise ValueError(f"not one line of text: {text!r}")
    return text


def user(name: str) -> str:
    """ValueError unless it is one plain user name: a comma would make it two."""
    if not _USER.fullmatch(name):
        raise ValueError(f"not one user name: {name!r}")
    return name


def reservation(name: str) -> str:
    """ValueError unless it can be one reservation's name: a comma would make it two, a dash an option."""
    if not name.isprintable() or name != name.strip() or not name or name[0] == "-" or set(name) & set(",="):
        raise ValueError(f"not one reservation's name: {name!r}")
    return name


def signal_name(name: str) -> str:
    if not name.isascii() or not name.isalnum():
        raise ValueError(f"not a signal: {name!r}")
    return name
