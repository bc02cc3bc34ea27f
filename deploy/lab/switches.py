"""Changing a running lab's slurm.conf: the settings are kept in lab.json, and `{}` is the lab as it came up."""

from __future__ import annotations

import re
from collections.abc import Mapping

from deploy.lab import accounting, full_files, slurm_files
from deploy.lab.errors import LabError
from deploy.lab.running import wait_for
from deploy.lab.slurm import node_states, run_as
from deploy.lab.state import State

MAX_BATCH_REQUEUE_SINCE = (23, 11)


def configure(state: State, settings: Mapping[str, str]) -> None:
    """Make `settings`, all of them, true in slurmctld, every slurmd that listens and, for PrivateData, slurmdbd.

    What Slurm refuses changes nothing.
    """
    for name, value in settings.items():
        if not re.fullmatch(r"[A-Za-z]+", name) or not re.fullmatch(r"[\x20-\x7e]+", value):
            raise LabError(f"{name}={value}: not a setting of slurm.conf")
        if name.lower() == "maxbatchrequeue":
            _refuse_before(state, name, MAX_BATCH_REQUEUE_SINCE)
    before = state.settings
    _write_down(state, dict(settings))
    try:
        run_as(state, ["scontrol", "reconfigure"], user="controller", timeout=60)
    except LabError:
        _write_down(state, before)
        raise
    wait_for("slurmctld answers after a reconfigure", lambda: bool(node_states(state)), seconds=30)
    if state.full:
        full_files.write_slurmdbd_conf(state)
        run_as(state, ["sacctmgr", "-i", "reconfigure"], user="controller")
        wait_for("slurmdbd answers after a reconfigure", lambda: accounting.answers(state), seconds=30)


def _write_down(state: State, settings: dict[str, str]) -> None:
    state.settings = settings
    state.save()
    slurm_files.write_slurm_conf(state)


def _refuse_before(state: State, name: str, since: tuple[int, int]) -> None:
    year, month = map(int, state.slurm_version.split("."))
    if (year, month) < since:
        raise LabError(
            f"{name} is of Slurm {since[0]}.{since[1]:02} and later, and this lab's is {state.slurm_version}"
        )
