"""Which Slurm the lab runs, and what it says when a program for it is missing."""

import shutil
from pathlib import Path

import pytest

from deploy.lab import rights
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError, MissingRight

pytestmark = pytest.mark.cluster

OWN = ("slurmctld", "slurmd", "slurmdbd", "sinfo", "scontrol", "sbatch", "squeue", "sacctmgr")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Slurm of its own, first on PATH."""
    for name in OWN:
        (tmp_path / name).symlink_to(shutil.which(name, path=rights.PATH) or "missing")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_the_systems_slurm_needs_no_path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/usr/bin:/bin", "/usr/sbin:/usr/bin", "", "/nowhere:/usr/sbin"):
        monkeypatch.setenv("PATH", path)
        assert rights.slurm_path() == ""


def test_the_first_slurm_on_the_path_is_the_labs(elsewhere: Path, directory: Path) -> None:
    lab = Lab.up(directory, nodes=1, loopback=True)
    try:
        assert lab.env["PATH"].startswith(f"{elsewhere}:") and lab.env == lab.state.as_json()["env"]
        slurmctld = lab.state.daemons["slurmctld"]
        assert Path(f"/proc/{slurmctld.pid}/environ").read_text().count(f"PATH={elsewhere}:") == 1
        assert lab.run("sh", "-c", "command -v sbatch", user="root").stdout.strip() == f"{elsewhere}/sbatch"
    finally:
        lab.down()


def test_half_of_another_slurm_on_the_path_is_refused(elsewhere: Path) -> None:
    (elsewhere / "sinfo").unlink()
    (elsewhere / "sinfo").write_text("#!/bin/sh\necho slurm 19.05.1\n")
    (elsewhere / "sinfo").chmod(0o755)
    with pytest.raises(LabError, match=r"mixes two versions.*19, 5"):
        rights.slurm_version()


@pytest.mark.parametrize(("program", "package"), [("mariadbd", "mariadb-server-core"), ("slurmdbd", "slurmdbd")])
def test_what_the_full_lab_misses_is_named(monkeypatch: pytest.MonkeyPatch, program: str, package: str) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == program else which(name, path=path))
    rights.check(loopback=True)
    with pytest.raises(MissingRight, match=rf"missing programs: {program} \(packages {package}\).*packages\.sh lab"):
        rights.check(loopback=True, full=True)
