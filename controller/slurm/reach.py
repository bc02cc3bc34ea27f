"""Whether hosts answer: TCP connects to many ports at once, under one time limit.

`open` and `refused` both mean a living host. `timeout` and `unreachable` mean that it did not answer us. `unknown` is
our own trouble (a name that does not resolve, no free socket): no word about the host.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["open", "refused", "timeout", "unreachable", "unknown"]

_SILENT = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Target:
    address: str
    port: int


def probe(targets: Sequence[Target], limit_s: float) -> list[Outcome]:
    """One outcome for each target, in order. Takes `limit_s` at most, and a moment."""
    return asyncio.run(_probe_all(targets, limit_s)) if targets else []


async def _probe_all(targets: Sequence[Target], limit_s: float) -> list[Outcome]:
    room = asyncio.Semaphore(AT_ONCE)
    deadline = asyncio.get_running_loop().time() + limit_s

    async def one(target: Target) -> Outcome:
        async with room:
            return await _probe(target, deadline)

    return list(await asyncio.gather(*(one(target) for target in targets)))


async def _probe(target: Target, deadline: float) -> Outcome:
    loop = asyncio.get_running_loop()
    found = await _resolve(target, deadline)
    if found is None:
        return "unknown"
    family, address = found
    left = deadline - loop.time()
    if left <= 0:
        return "unknown"  # never tried: many targets, or a slow resolver
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            await asyncio.wait_for(loop.sock_connect(sock, address), left)
    except TimeoutError as error:
        # The kernel's own give-up (ETIMEDOUT) is the same class as the limit: both are silence.
        return "timeout" if error.errno in (None, errno.ETIMEDOUT) else "unknown"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "unreachable" if error.errno in _SILENT else "unknown"
    return "open"


async def _resolve(target: Target, deadline: float) -> tuple[int, tuple[str, int]] | None:
    """Numeric addresses need no resolver. Names are asked for in a thread that is left behind when it hangs."""
    try:
        version = ipaddress.ip_address(target.address).version
        return (socket.AF_INET if version == 4 else socket.AF_INET6), (target.address, target.port)
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[int, tuple[str, int]] | None] = loop.create_future()

    def settle(value: tuple[int, tuple[str, int]] | None) -> None:
        if not answer.done():
            answer.set_result(value)

    def ask() -> None:
        try:
            family, *_, address = socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)[0]
            value = (int(family), (str(address[0]), int(address[1])))
        except OSError:
            value = None
        try:
            loop.call_soon_threadsafe(settle, value)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, max(0.0, deadline - loop.time()))
    except TimeoutError:
        return None
