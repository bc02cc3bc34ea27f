"""Nodes of the lab on which starts fail, for as long as a test says: made in the node's own mount namespace, so that no
other node and nothing outside the lab sees it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.lab.cluster import Lab


@contextmanager
def read_only_spool(lab: Lab, node: str) -> Iterator[None]:
    """Its slurmd can set no start up: Slurm queues the job again, held ("launch failed requeued held")."""
    spool = f"{lab.dir}/spool/{node}"
    _inside(lab, node, "mount", "--bind", spool, spool)
    try:
        _inside(lab, node, "mount", "-o", "remount,ro,bind", spool)
        yield
    finally:
        _inside(lab, node, "umount", spool)


@contextmanager
def deaf(lab: Lab, node: str) -> Iterator[None]:
    """Its slurmd cannot tell who speaks and takes no launch: Slurm gives up and queues the job again by itself."""
    munge = f"{lab.dir}/munge"
    _inside(lab, node, "mount", "-t", "tmpfs", "tmpfs", munge)
    try:
        yield
    finally:
        _inside(lab, node, "umount", munge)


def failing_prolog(lab: Lab, node: str) -> Path:
    """A Prolog that fails on `node` alone: Slurm drains that node itself and holds the job."""
    script = lab.dir / "prolog.sh"
    script.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {node} ]\n')
    script.chmod(0o755)
    return script


def _inside(lab: Lab, node: str, *argv: str) -> None:
    slurmd = next(each for each in lab.nodes if each.name == node).slurmd
    assert slurmd is not None
    subprocess.run(["nsenter", "-m", "-t", str(slurmd.pid), *argv], check=True, timeout=10, capture_output=True)
