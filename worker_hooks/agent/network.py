"""Addresses, ports and probes: every network question of the agent except its posts. Each has a time limit."""

import errno
import fcntl
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from worker_hooks.protocol.messages import ProbeOutcome

_SIOCGIFADDR = 0x8915
_PORTS = range(20000, 32000)  # below Linux's ephemeral range: nobody's outgoing connection takes it meanwhile
MAX_TARGETS = 16


class NetworkError(RuntimeError):
    """No such interface, or no free port."""


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface. Raises NetworkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise NetworkError(f"interface {name} has no IPv4 address here: {error.strerror}") from error
    return socket.inet_ntoa(packed[20:24])


def address_towards(url: str | None) -> str:
    """The address from which this host would speak to `url`; without one, of its default route; else loopback."""
    for host, port in (_endpoint(url), ("192.0.2.1", 9)):
        if host is None:
            continue
        with suppress(OSError, ValueError, TypeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # a datagram socket: this sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def _endpoint(url: str | None) -> tuple[str | None, int]:
    with suppress(ValueError):
        parts = urlsplit(url or "")
        return parts.hostname, parts.port or 80
    return None, 0


def free_port(address: str, pick: Callable[[], int] = lambda: random.choice(_PORTS)) -> int:
    """A port of `address` that is free now. Raises NetworkError."""
    for _ in range(64):
        port = pick()
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.bind((address, port))
            return port
    raise NetworkError(f"no free port on {address}")


def connect_outcome(address: str, port: int, timeout_s: float) -> ProbeOutcome:
    """What a TCP connection meets. `refused` is a living host; `timeout` and `unreachable` are not."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return "timeout" if error.errno == errno.ETIMEDOUT else "unreachable"


class ProbeListener:
    """Accepts and closes: whoever connects learns that this host lives. `port` is None if none could be opened."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self.port: int | None = None
        with suppress(OSError):
            self._server = socket.create_server(("", 0), backlog=16)
            self.port = self._server.getsockname()[1]

    def start(self) -> None:
        if self._server is not None:
            threading.Thread(target=self._serve, args=(self._server,), name="relume-probed", daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            self._server.close()

    @staticmethod
    def _serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE):
                    time.sleep(0.1)
                    continue
                return
            connection.close()
