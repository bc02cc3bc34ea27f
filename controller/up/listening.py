"""The sockets of the web process. `up` opens and keeps them, so that a restart of the web loses no connection, a taken
port is told at once, and a low port needs no right of the web user."""

import fcntl
import ipaddress
import socket
import struct

from controller.environment import Address
from controller.up.accounts import UpError

BACKLOG = 1024
# A host that dies in the middle of its request sends no more and no end either: without a limit it would keep one of
# the web's few threads for ever. Connections inherit these options from the socket that accepts them.
STALLED_S = 5
ALWAYS = ("localhost", "127.0.0.1", "[::1]")


def open_sockets(addresses: list[Address]) -> list[socket.socket]:
    """Raises UpError, which names the address."""
    opened: list[socket.socket] = []
    for address in addresses:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, where = found[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                listener.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STALLED_S, 0))
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError as error:
            for listener in opened:
                listener.close()
            raise UpError(f"cannot listen on {address}: {error.strerror or error}") from None
        opened.append(listener)
    return opened


def url_of(listener: socket.socket) -> str:
    """The address to open: a wildcard is named by this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def near_address(listener: socket.socket) -> tuple[str, int]:
    """Where this process itself reaches the web."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return host, port


def allowed_hosts(addresses: list[Address]) -> str:
    """The names this machine is called by, for RELUME_ALLOWED_HOSTS unless it is set."""
    names = [*ALWAYS, socket.gethostname(), socket.getfqdn()]
    for address in addresses:
        names.append(f"[{address.host}]" if ":" in address.host else address.host)
    names += own_addresses() if any(address.wildcard for address in addresses) else []
    return ",".join(dict.fromkeys(names))


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), 0x8915, name.encode()[:15].ljust(256, b"\0"))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(answer[20:24]))
            except OSError:
                continue  # an interface without an IPv4 address
    return found
