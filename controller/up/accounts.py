"""Who runs as whom: the web process must not be able to act on Slurm, so started by root it is another user.

Both users share one group, the web user's own: that way the web process gains no group that the worker's user has.
"""

import grp
import os
import pwd
from dataclasses import dataclass
from pathlib import Path


class UpError(Exception):
    """`up` cannot start or go on; the text says what to change."""


@dataclass(frozen=True)
class Account:
    """A user to become. `switch` False: we are that user already."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    switch: bool

    def popen(self) -> dict[str, object]:
        """The arguments of subprocess.Popen that make a child this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)} if self.switch else {}

    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name} if self.switch else {}


@dataclass(frozen=True)
class Accounts:
    """`shared_gid` is set when web and workers are different users."""

    web: Account
    worker: Account
    shared_gid: int | None
    warnings: tuple[str, ...]


def choose(web_name: str, worker_name: str) -> Accounts:
    """From `RELUME_WEB_USER` and `RELUME_WORKER_USER`. Raises UpError for a user that does not exist."""
    web_entry = _entry("RELUME_WEB_USER", web_name)
    worker_entry = _entry("RELUME_WORKER_USER", worker_name)
    if os.geteuid() != 0:
        return _ourselves(web_name, worker_name)
    if web_entry is None and worker_entry is None:
        return _same(_me(), "started by root without RELUME_WEB_USER and RELUME_WORKER_USER: everything runs as root")
    if web_entry is None or (worker_entry is not None and web_entry.pw_uid == worker_entry.pw_uid):
        assert worker_entry is not None  # one of the two is set
        return _same(_account(worker_entry, ()), "RELUME_WEB_USER is not set to a user of its own")
    shared = web_entry.pw_gid
    if worker_entry is None:
        warning = "RELUME_WORKER_USER is not set: the workers run as root"
        return Accounts(_account(web_entry, ()), _me(), shared, (warning,))
    return Accounts(_account(web_entry, ()), _account(worker_entry, (shared,)), shared, ())


def _entry(variable: str, name: str) -> pwd.struct_passwd | None:
    if not name:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise UpError(f"{variable}={name!r}: there is no such user") from None


def _ourselves(web_name: str, worker_name: str) -> Accounts:
    me = _me()
    strangers = {name for name in (web_name, worker_name) if name and name != me.name}
    why = f"only root can start processes as {' and '.join(sorted(strangers))}" if strangers else "not started by root"
    return _same(me, why)


def _same(account: Account, why: str) -> Accounts:
    warning = f"{why}; web and actions share one identity ({account.name}): who takes over the page can act on Slurm"
    return Accounts(account, account, None, (warning,))


def _me() -> Account:
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)  # a container's user without an entry
    return Account(name, uid, os.getegid(), (), "", switch=False)


def _account(entry: pwd.struct_passwd, more: tuple[int, ...]) -> Account:
    groups = dict.fromkeys((*os.getgrouplist(entry.pw_name, entry.pw_gid), *more))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_dir, switch=True)


def check_reach(account: Account, needed: dict[str, Path]) -> None:
    """Can this user read what it must? `needed`: what it is -> path. Raises UpError that names the closed folder.

    Asked by a child that became the user: mode bits alone miss access lists and parent folders.
    """
    if not account.switch:
        return
    for what, path in needed.items():
        for place in (*reversed(path.parents), path):
            if not _may_read(account, place, last=place == path):
                raise UpError(f"user {account.name} cannot reach {what}, {path}: {place} is closed to it")


def _may_read(account: Account, place: Path, last: bool) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(account.groups)
            os.setgid(account.gid)
            os.setuid(account.uid)
            code = 0 if os.access(place, os.R_OK if last else os.X_OK) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
