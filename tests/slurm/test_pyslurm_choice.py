"""Which adapter is chosen, and the sentence that says why: a real process each, with a `pyslurm` and a `scontrol` that
the test writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.errors import SlurmError, SlurmUnavailable
from controller.slurm.choose import AdapterUnusable, Choice, choose
from controller.slurm.cli import CliSlurm, TimeLimits
from controller.slurm.pyslurm import PySlurm
from controller.slurm.pyslurm_process import PySlurmProcess
from controller.slurm.runner import Runner

pytestmark = pytest.mark.pure

CONFIG = "ClusterName = lab\nSLURM_VERSION = 25.11.7\n"
FITTING = """
from types import SimpleNamespace as Thing
class RPCError(Exception): pass
__version__ = "25.11.2"
Nodes = Jobs = Partitions = Reservations = Thing(load=dict)
slurmctld = Thing(ping_primary=lambda: Thing(is_responding=True))
"""

Site = Callable[..., CliSlurm]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The commands of a Slurm 25.11.7, and a Python in which `import pyslurm` gives `pyslurm`."""

    def make(pyslurm: str | None = None, config: str = CONFIG, rc: int = 0) -> CliSlurm:
        scontrol = tmp_path / "scontrol"
        scontrol.write_text(f"#!/bin/sh\ncat <<'END'\n{config}END\nexit {rc}\n")
        scontrol.chmod(0o755)
        folder = tmp_path / "python"
        folder.mkdir(exist_ok=True)
        if pyslurm is not None:
            (folder / "pyslurm.py").write_text(pyslurm)
            monkeypatch.syspath_prepend(folder)
        else:  # where these tests run it may be installed
            monkeypatch.setattr("controller.slurm.choose.importlib.util.find_spec", lambda name: None)
        path = f"{tmp_path}:{os.environ['PATH']}"
        runner = Runner(env=os.environ | {"PATH": path, "PYTHONPATH": str(folder)})
        monkeypatch.setenv("PATH", path)
        return CliSlurm(clock=lambda: datetime.now(UTC), reader=runner, limits=TimeLimits(read=20.0))

    return make


def chosen_pyslurm(choice: Choice) -> PySlurm:
    assert choice.name == "pyslurm" and choice.final and isinstance(choice.adapter, PySlurm)
    assert isinstance(choice.adapter.reader, PySlurmProcess)
    choice.adapter.reader.close()
    return choice.adapter


@pytest.mark.parametrize("wanted", ["auto", "pyslurm"])
def test_pyslurm_of_the_running_release_is_chosen(site: Site, wanted: str) -> None:
    choice = choose(wanted, site(FITTING))  # type: ignore[arg-type]
    adapter = chosen_pyslurm(choice)
    assert choice.reason == "pyslurm 25.11.2 is installed and slurmctld is 25.11.7"
    assert adapter.release == "25.11" and adapter.job_writer is adapter.node_writer is adapter.reader


def test_the_commands_when_they_are_asked_for(site: Site) -> None:
    commands = site(FITTING)
    choice = choose("cli", commands)
    assert choice.adapter is commands and "SLURM_ADAPTER=cli" in choice.reason


@pytest.mark.parametrize(
    ("pyslurm", "why"),
    [
        (None, "not installed"),
        ("raise ImportError('libslurmfull.so: no such file')", "does not import: ImportError: libslurmfull.so"),
        ("import os; os.write(2, b'fatal: no slurm.conf'); os._exit(1)", "does not start: .*fatal: no slurm.conf"),
        (FITTING.replace("25.11.2", "24.11.0"), "is for Slurm 24.11, and slurmctld is 25.11.7"),
        (FITTING.replace("Partitions =", "Parts ="), "cannot be read: .*Partitions"),
    ],
    ids=["absent", "broken", "fatal", "another release", "another interface"],
)
def test_why_it_is_not_pyslurm(site: Site, pyslurm: str | None, why: str) -> None:
    """`auto` takes the commands and says why; `pyslurm` is an error that says what, where, and what to do."""
    commands = site(pyslurm)
    choice = choose("auto", commands)
    assert choice.adapter is commands and choice.name == "command line" and choice.final
    with pytest.raises(AdapterUnusable, match=why) as refused:
        choose("pyslurm", commands)
    assert str(refused.value).startswith("SLURM_ADAPTER=pyslurm: ") and "docs/pyslurm.md" in str(refused.value)
    assert choice.reason in str(refused.value)


def test_a_slurm_that_does_not_answer_is_asked_again_later(site: Site) -> None:
    commands = site(FITTING, config="Unable to contact slurm controller (connect failure)\n", rc=1)
    choice = choose("auto", commands)
    assert choice.adapter is commands and not choice.final and "Unable to contact" in choice.reason
    with pytest.raises(SlurmUnavailable):
        choose("pyslurm", commands)


def test_a_slurmctld_that_changes_its_release_makes_the_choice_outdated(site: Site) -> None:
    commands = site(FITTING)
    choice = choose("auto", commands)
    assert isinstance(choice.adapter, PySlurm) and not choice.outdated
    site(FITTING, config=CONFIG.replace("25.11.7", "26.05.0"))
    with pytest.raises(SlurmError, match=r"slurmctld is 26\.05\.0 now"):
        choice.adapter.read_cluster()
    assert choice.outdated
    chosen_pyslurm(choice)


def test_writes_under_credentials_of_their_own_are_the_commands(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix (sudo) allows Slurm's commands, not a Python."""
    commands = site(FITTING)
    apart = replace(commands, node_writer=replace(commands.reader, run_as=("sudo", "-n", "-u", "slurm")))
    adapter = chosen_pyslurm(choose("auto", apart))
    assert adapter.node_writer is None and adapter.job_writer is adapter.reader
    said: list[str] = []
    monkeypatch.setattr(CliSlurm, "resume_node", lambda self, name: said.append(name))
    adapter.resume_node("gpu1")
    assert said == ["gpu1"]
