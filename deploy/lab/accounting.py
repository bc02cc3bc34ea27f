"""The full lab's accounting: MariaDB as an instance of its own, slurmdbd, and who may do what.

MariaDB runs as a user of its own on its own files, listens on a unix socket alone and knows the users behind it from
the kernel: there is no port and no password, and a MariaDB that the machine may have is not touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.lab import daemons
from deploy.lab.running import run, wait_for
from deploy.lab.slurm import run_as
from deploy.lab.state import State

# Role to account, and the level that Slurm gives it beyond what owners may do with their own.
ACCOUNTS = {
    "owner": "vision",
    "other": "speech",
    "controller": "staff",
    "operator": "staff",
    "administrator": "staff",
}
LEVELS = {"operator": "Operator", "administrator": "Administrator"}


def make(state: State) -> None:
    """Database, slurmdbd, accounts and users: all there before slurmctld starts, which reads them then."""
    _make_database(state)
    start_database(state)
    start_slurmdbd(state)
    _enrol(state)


def start_database(state: State) -> None:
    folder = _folder(state)
    argv = [
        "mariadbd", "--no-defaults", f"--datadir={folder}/data", f"--socket={_socket(state)}", "--skip-networking",
        f"--pid-file={folder}/pid", f"--tmpdir={folder}/tmp", *_SMALL, "--innodb-lock-wait-timeout=900",
    ]  # fmt: skip
    daemons.start(state, "mariadbd", argv, user=state.users["database"])
    wait_for("MariaDB's socket", lambda: daemons.answers_unix(str(_socket(state))), seconds=30)


def start_slurmdbd(state: State) -> None:
    """Started, and answering: its first start makes the tables."""
    env = {"MYSQL_UNIX_PORT": str(_socket(state))}
    daemons.start(state, "slurmdbd", ["slurmdbd", "-D"], user=state.users["controller"], env=env)
    wait_for("slurmdbd answers", lambda: answers(state), seconds=60)


def answers(state: State) -> bool:
    done = run_as(state, ["sacctmgr", "-nP", "show", "cluster"], user="controller", check=False)
    return done.returncode == 0


def wait_until_registered(state: State) -> None:
    """slurmdbd knows where slurmctld is, and so tells it of every change."""

    def registered() -> bool:
        argv = ["sacctmgr", "-nP", "show", "cluster", state.cluster, "format=ControlHost"]
        return bool(run_as(state, argv, user="controller", check=False).stdout.strip())

    wait_for("slurmctld is registered with slurmdbd", registered, seconds=30)


# Durability is not wanted: the database dies with the lab.
_SMALL = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-use-native-aio=0",  # a container may have no io_uring
    "--performance-schema=OFF",
)


def _make_database(state: State) -> None:
    folder, user = _folder(state), state.users["database"]
    for path in (folder, folder / "data", folder / "tmp"):
        path.mkdir(mode=0o755 if path == folder else 0o700)
        shutil.chown(path, user, user)
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    # The only account beside root's: slurmdbd's user, told by the kernel.
    argv = [
        "mariadb-install-db", "--no-defaults", f"--datadir={folder}/data", f"--tmpdir={folder}/tmp", "--skip-test-db",
        "--auth-root-authentication-method=socket", f"--auth-root-socket-user={state.users['controller']}",
        "--innodb-log-file-size=16M",
    ]  # fmt: skip
    run([*become, *argv], timeout=60)


def _enrol(state: State) -> None:
    def add(*words: str) -> None:
        run_as(state, ["sacctmgr", "-i", "add", *words], user="controller")

    add("cluster", state.cluster)
    add("account", ",".join(dict.fromkeys(ACCOUNTS.values())), f"cluster={state.cluster}")
    for role, account in ACCOUNTS.items():
        level = [f"AdminLevel={LEVELS[role]}"] if role in LEVELS else []
        add("user", state.users[role], f"account={account}", f"cluster={state.cluster}", *level)


def _folder(state: State) -> Path:
    return state.path / "database"


def _socket(state: State) -> Path:
    return _folder(state) / "socket"
