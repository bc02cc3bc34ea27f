"""Which adapter speaks to Slurm, and why: pyslurm where it is installed for the Slurm that runs, else the commands."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from controller.errors import RelumeError, SlurmError, SlurmUnreadable
from controller.slurm import versions
from controller.slurm.cli import CliSlurm
from controller.slurm.port import SlurmPort
from controller.slurm.pyslurm import PySlurm
from controller.slurm.pyslurm_process import PySlurmProcess
from controller.slurm.runner import Runner

Wanted = Literal["auto", "cli", "pyslurm"]


class AdapterUnusable(RelumeError):
    """SLURM_ADAPTER=pyslurm, and pyslurm cannot be used here: says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`reason` is one sentence for a person. `final` is false when Slurm could not be asked: choose again later."""

    adapter: SlurmPort
    name: Literal["command line", "pyslurm", "in-memory"]
    reason: str
    final: bool = True

    @property
    def outdated(self) -> bool:
        """slurmctld is another release than it was when this was chosen: choose again at once."""
        return isinstance(self.adapter, PySlurm) and self.adapter.outdated


def choose(wanted: Wanted, commands: CliSlurm) -> Choice:
    """AdapterUnusable when `wanted` is pyslurm and it is not installed, or not for the slurmctld that runs.

    SlurmError when `wanted` is pyslurm and Slurm itself cannot be asked for its version.
    """
    if wanted == "cli":
        return Choice(commands, "command line", "SLURM_ADAPTER=cli asks for Slurm's own commands")
    if importlib.util.find_spec("pyslurm") is None:
        return _without(wanted, commands, "pyslurm is not installed in this Python environment")
    reader = PySlurmProcess(commands.reader)
    try:
        choice = _with_pyslurm(wanted, commands, reader)
    except BaseException:
        reader.close()
        raise
    if choice.name != "pyslurm":
        reader.close()
    return choice


def _with_pyslurm(wanted: Wanted, commands: CliSlurm, reader: PySlurmProcess) -> Choice:
    try:
        running = commands.version()
    except SlurmError as error:
        return _away(wanted, commands, error)
    try:
        answer = reader.ask("version", {}, limit=commands.limits.read, write=False)
    except SlurmError as error:
        return _without(wanted, commands, f"pyslurm is installed and does not start: {error}")
    if "error" in answer:
        return _without(wanted, commands, f"pyslurm is installed and does not import: {answer['error']}")
    built_for = versions.parse(str(answer["value"]))
    if built_for.release != running.release:
        mismatch = f"pyslurm {built_for} is for Slurm {built_for.release}, and slurmctld is {running}"
        return _without(wanted, commands, mismatch)
    adapter = _adapter(commands, reader, built_for.release)
    try:
        adapter.read_cluster()
        adapter.ping()
    except SlurmUnreadable as error:
        return _without(wanted, commands, f"pyslurm {built_for} cannot be read: {error}")
    except SlurmError as error:
        return _away(wanted, commands, error)
    return Choice(adapter, "pyslurm", f"pyslurm {built_for} is installed and slurmctld is {running}")


def _away(wanted: Wanted, commands: CliSlurm, error: SlurmError) -> Choice:
    if wanted == "pyslurm":
        raise error
    return Choice(commands, "command line", f"slurmctld did not answer when pyslurm was tried: {error}", final=False)


def _adapter(commands: CliSlurm, reader: PySlurmProcess, release: str) -> PySlurm:
    def ours(writer: Runner | None) -> PySlurmProcess | None:
        return reader if writer is None or writer == commands.reader else None

    return PySlurm(
        clock=commands.clock,
        commands=commands,
        release=release,
        reader=reader,
        job_writer=ours(commands.job_writer),
        node_writer=ours(commands.node_writer),
        limits=commands.limits,
    )


def _without(wanted: Wanted, commands: CliSlurm, why: str) -> Choice:
    if wanted == "pyslurm":
        raise AdapterUnusable(
            f"SLURM_ADAPTER=pyslurm: {why}. Install the pyslurm of the running slurmctld's release (docs/pyslurm.md), "
            "or set SLURM_ADAPTER to auto or cli"
        )
    return Choice(commands, "command line", why)
