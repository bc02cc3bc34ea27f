"""Another identity for writes: an argv prefix from the settings, read strictly. Pure.

Three launchers are known, each in one form, so that it is certain whom Slurm will see and that nothing ever waits for
a password:

    sudo -n -u USER
    runuser -u USER --
    setpriv --reuid=USER --regid=GROUP --clear-groups | --init-groups

Only the first can be opened for single commands (a sudoers line); the others need root.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

SUDO = "sudo"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*\$?", re.ASCII)
_FORMS = "sudo -n -u USER, runuser -u USER --, or setpriv --reuid=USER --regid=GROUP --clear-groups"


@dataclass(frozen=True, slots=True)
class RunAs:
    """`argv` goes before each command; `user` is whom it makes of it."""

    argv: tuple[str, ...]
    user: str

    @property
    def sudo(self) -> bool:
        return self.argv[0].rpartition("/")[2] == SUDO


def parse(text: str) -> RunAs:
    """ValueError that says which forms there are."""
    try:
        words = shlex.split(text)
    except ValueError as wrong:
        raise ValueError(f"{text!r}: {wrong}") from None
    user = _user(words)
    if user is None or not _NAME.fullmatch(user):
        raise ValueError(f"{text!r}: expected {_FORMS}")
    return RunAs(tuple(words), user)


def _user(words: list[str]) -> str | None:
    match words:
        case [launcher, "-n", "-u", user] if _is(launcher, SUDO):
            return user
        case [launcher, "-u", user, "--"] if _is(launcher, "runuser"):
            return user
        case [launcher, reuid, regid, "--clear-groups" | "--init-groups"] if _is(launcher, "setpriv"):
            key, _, user = reuid.partition("=")
            group_key, _, group = regid.partition("=")
            named = (key, group_key) == ("--reuid", "--regid") and _NAME.fullmatch(group)
            return user if named else None
    return None


def _is(launcher: str, name: str) -> bool:
    """By its name, to be found on PATH, or by an absolute path."""
    return launcher == name or (launcher.startswith("/") and launcher.rpartition("/")[2] == name)
