"""The lab's users: made for this lab alone, gone with it.

controller   SlurmUser: the only ordinary user whom Slurm lets hold, drain and requeue
web          the controller's group, no Slurm rights: the web process
owner        submits the jobs
munge        runs munged and alone can read its key

and in the full lab, where accounting knows them all:

other          another user, with jobs of its own
operator       AdminLevel=Operator: may hold, requeue and cancel anybody's jobs
administrator  AdminLevel=Administrator: may change nodes and reservations too
database       runs MariaDB and alone can read its files
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import time
from pathlib import Path

from deploy.lab.errors import LabError
from deploy.lab.running import run
from deploy.lab.state import State

STEMS = {"controller": "relume", "web": "relume-web", "owner": "ada", "munge": "relume-munge"}
FULL_STEMS = {
    **STEMS,
    "other": "bob",
    "operator": "operator",
    "administrator": "administrator",
    "database": "relume-db",
}


def names(lab_id: str, *, full: bool = False) -> dict[str, str]:
    return {role: f"{stem}-{lab_id}" for role, stem in (FULL_STEMS if full else STEMS).items()}


def taken(state: State) -> list[str]:
    """Names that exist already: another lab's, since ours are not made yet."""
    known = {entry.pw_name for entry in pwd.getpwall()} | {entry.gr_name for entry in grp.getgrall()}
    return sorted(known & set(state.users.values()))


def create(state: State) -> None:
    homes = state.path / "home"
    homes.mkdir()
    for role in state.users:
        group = ["--gid", state.users["controller"]] if role == "web" else ["--user-group"]
        home = homes / role
        _account("useradd", "--system", *group, "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh",
                 state.users[role])  # fmt: skip
        _home(home, state.users[role])


def remove(state: State) -> None:
    # The web user first: while it is there, the controller's group cannot go.
    for role in sorted(state.users, key=lambda r: r != "web"):
        if _exists(pwd.getpwnam, state.users[role]):
            # Forced: a container may have processes of the same number, which are none of the user's.
            _account("userdel", "--force", state.users[role])
    for role in state.users:
        if _exists(grp.getgrnam, state.users[role]):
            _account("groupdel", state.users[role])


def _home(home: Path, user: str) -> None:
    home.mkdir(mode=0o700)
    shutil.chown(home, user)
    os.chown(home, -1, pwd.getpwnam(user).pw_gid)


def _account(*argv: str) -> None:
    """Other programs lock the same files for a moment: try again before giving up."""
    for attempt in range(20):
        done = run(argv, check=False)
        if done.returncode == 0:
            return
        if "lock" not in done.stderr:
            break
        time.sleep(0.1 * (1 + attempt % 5))
    raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")


def _exists(lookup: object, name: str) -> bool:
    try:
        lookup(name)  # type: ignore[operator]
    except KeyError:
        return False
    return True
