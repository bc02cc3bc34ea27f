"""Does this machine let us make a lab? Asked by trying, in throw-away namespaces, before anything is made."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from deploy.lab.errors import LabError, MissingRight
from deploy.lab.running import PATH, run

INSTALL = "run: sh deploy/setup/packages.sh lab"
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "useradd": "passwd",
    "userdel": "passwd",
    "groupdel": "passwd",
}
FULL_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",  # mariadb-install-db starts with it
}
# What is tried, the right it needs, in the order in which a reader can act on it.
NAMESPACE_TRIALS = (
    (["unshare", "--net", "true"], "CAP_SYS_ADMIN (making a network namespace)"),
    (["unshare", "--uts", "--mount", "sh", "-c", "mount -t tmpfs none /dev/shm"], "CAP_SYS_ADMIN (mounting)"),
    (["unshare", "--net", "ip", "link", "set", "lo", "up"], "CAP_NET_ADMIN (configuring a network)"),
    (
        ["unshare", "--net", "ip", "link", "add", "dev", "v0", "type", "veth", "peer", "name", "v1"],
        "the kernel's veth module",
    ),
    (["unshare", "--net", "ip", "link", "add", "dev", "b0", "type", "bridge"], "the kernel's bridge module"),
)


def check(*, loopback: bool, full: bool = False) -> None:
    """Raise `MissingRight` naming the first right or program that is missing, and what to do about it."""
    check_root()
    programs, path = {**PROGRAMS, **(FULL_PROGRAMS if full else {})}, f"{slurm_path()}:{PATH}"
    missing = {name: package for name, package in programs.items() if not shutil.which(name, path=path)}
    if missing:
        packages = ", ".join(sorted(set(missing.values())))
        raise MissingRight(f"missing programs: {', '.join(missing)} (packages {packages}). To install them, {INSTALL}")
    _check_mknod()
    if not loopback:
        _check_namespaces()


def check_root() -> None:
    if os.geteuid() != 0:
        raise MissingRight("the lab must be root: it makes users, namespaces and device files. Run it with sudo")


def _check_mknod() -> None:
    with tempfile.TemporaryDirectory(prefix="relume-trial-") as folder:
        try:
            os.mknod(Path(folder) / "gpu0", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            raise MissingRight(
                "missing right: CAP_MKNOD (the fake GPUs are device files). In a container, add --cap-add=MKNOD"
            ) from None


def _check_namespaces() -> None:
    for argv, right in NAMESPACE_TRIALS:
        try:
            run(argv, timeout=10)
        except LabError as error:
            raise MissingRight(
                f"missing right: {right}: {error}. In a container, run it with --privileged; "
                "or use --loopback, which shows dead daemons but neither silent hosts nor cut networks"
            ) from None


def slurm_path() -> str:
    """The folders of the caller's Slurm when it is not the system's: what its PATH finds first is what the lab runs."""
    first = f"{os.environ.get('PATH', '')}:{PATH}"
    found = [shutil.which(name, path=first) for name in ("slurmctld", "sinfo")]
    folders = {str(Path(name).parent): None for name in found if name}
    return ":".join(folders) if set(folders) - set(PATH.split(":")) else ""


def slurm_version() -> tuple[int, int]:
    """(22, 5) for 22.05. `LabError` when daemons and commands are of two versions: half of a Slurm is on the PATH."""
    with tempfile.TemporaryDirectory(prefix="relume-trial-") as folder:
        conf = Path(folder) / "slurm.conf"  # without one the commands tell nothing, not even their version
        conf.write_text("ClusterName=x\nSlurmctldHost=x\n")
        said = {name: _version(name, conf) for name in ("slurmctld", "sinfo")}
    if said["slurmctld"] != said["sinfo"]:
        raise LabError(f"PATH mixes two versions of Slurm: {said}. Put both its bin and its sbin in front")
    return said["slurmctld"]


def _version(program: str, conf: Path) -> tuple[int, int]:
    found_at = shutil.which(program, path=f"{slurm_path()}:{PATH}") or program
    words = run(["env", f"SLURM_CONF={conf}", found_at, "-V"]).stdout
    found = re.search(r"(\d+)\.(\d+)", words)
    if not found:
        raise LabError(f"{program} -V said {words.strip()!r}: no version in it")
    return int(found[1]), int(found[2])
