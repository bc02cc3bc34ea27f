"""Asking the lab's own Slurm, as one of the lab's users, always within a time limit."""

from __future__ import annotations

import pwd
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.lab import processes
from deploy.lab.errors import LabError
from deploy.lab.state import Node, State


def run_as(
    state: State,
    argv: Sequence[str],
    *,
    user: str = "owner",
    timeout: float = 30,
    check: bool = True,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    node: Node | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` with the lab's SLURM_CONF as `user`: a role (owner, controller, ...), or "root".

    `node`: on that node instead of the controller's host. `check`: a failure or a time-out is a `LabError`.
    """
    account = pwd.getpwnam(state.users.get(user, user))
    full = {
        "PATH": state.search_path, "LC_ALL": "C.UTF-8", "SLURM_CONF": state.slurm_conf, "SHELL": "/bin/sh",
        "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, **(env or {}),
    }  # fmt: skip
    command = [*_enter(node), *_become(account), *argv]
    try:
        done = subprocess.run(
            command,
            env=full,
            cwd=cwd or state.dir,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(argv)}: no answer within {timeout:g} s") from None
    if check and done.returncode:
        raise LabError(f"{' '.join(argv)} (as {user}): exit {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done


def node_states(state: State) -> dict[str, str]:
    """Node to sinfo's word for its state, `*` (not responding) included; {} while slurmctld does not answer."""
    try:
        done = run_as(state, ["sinfo", "-h", "-N", "-a", "-o", "%N %T"], user="controller", timeout=10, check=False)
    except LabError:
        return {}
    return dict(line.split() for line in done.stdout.splitlines() if line.strip())


def registered(state: State, node: Node) -> bool:
    """Slurm has heard from this very slurmd, not only from one before it: its word on the node is of today."""
    if not (node.slurmd and processes.is_alive(node.slurmd)):
        return False
    shown = run_as(
        state, ["scontrol", "show", "node", node.name, "-o"], user="controller", env={"SLURM_TIME_FORMAT": "%s"}
    ).stdout
    found = re.search(r"SlurmdStartTime=(\d+)", shown)
    return found is not None and int(found[1]) >= processes.started_at(node.slurmd) - 1


def jobs(state: State) -> list[str]:
    return run_as(state, ["squeue", "-h", "-a", "-o", "%A"], user="controller").stdout.split()


def _become(account: pwd.struct_passwd) -> list[str]:
    if account.pw_uid == 0:
        return []
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _enter(node: Node | None) -> list[str]:
    """All of the node's namespaces while its slurmd lives, else the network alone."""
    if node is None or node.netns is None:
        return []
    if node.slurmd and processes.is_alive(node.slurmd):
        return ["nsenter", f"--target={node.slurmd.pid}", "--net", "--uts", "--mount", "--wdns=/", "--"]
    return ["nsenter", f"--net={processes.NETNS_DIR / node.netns}", "--"]
