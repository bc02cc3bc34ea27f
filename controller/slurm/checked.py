"""Arguments of writes, checked before they reach an adapter: nothing is guessed, nothing can carry a second command."""

from __future__ import annotations

from collections.abc import Sequence

from controller.slurm import hostlist, jobids


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


def signal_name(name: str) -> str:
    if not name.isascii() or not name.isalnum():
        raise ValueError(f"not a signal: {name!r}")
    return name
