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


def check(*, loopback: bool) -> None:
    """Raise `MissingRight` naming the first right or program that is missing, and what to do about it."""
    check_root()
    missing = {name: package for name, package in PROGRAMS.items() if not shutil.which(name, path=PATH)}
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


def slurm_version() -> tuple[int, int]:
    """(22, 5) for 22.05. Slurm's daemons and commands on one machine are of one version."""
    words = run(["slurmctld", "-V"]).stdout
    found = re.search(r"(\d+)\.(\d+)", words)
    if not found:
        raise LabError(f"slurmctld -V said {words.strip()!r}: no version in it")
    return int(found[1]), int(found[2])
