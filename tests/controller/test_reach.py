"""The TCP probe, on real sockets."""

import socket
import time
from pathlib import Path

import pytest

from controller.slurm.reach import Target, probe

pytestmark = pytest.mark.scenario


@pytest.fixture
def listening() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    yield made  # type: ignore[misc]
    made.close()


def port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def full() -> tuple[socket.socket, list[socket.socket]]:
    """A listener whose backlog is full: the kernel drops what comes, as a dark host does."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(server.getsockname())
        fillers.append(filler)
    return server, fillers


def test_open_refused_and_silent_at_once(listening: socket.socket) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = port(unused)
        server, fillers = full()
        begun = time.monotonic()
        targets = [Target("127.0.0.1", p) for p in (port(listening), closed, port(server))]
        assert probe([*targets, *targets[:2] * 50], 0.5)[:3] == ["open", "refused", "timeout"]
        assert time.monotonic() - begun < 5, "one limit for all of them"
        for sock in (server, *fillers):
            sock.close()


def test_a_name_that_does_not_resolve_says_nothing_about_a_host(listening: socket.socket) -> None:
    assert probe([Target("no-such-host.invalid", 1), Target("127.0.0.1", port(listening))], 2.0) == ["unknown", "open"]


def test_names_are_resolved(listening: socket.socket) -> None:
    assert probe([Target("localhost", port(listening))], 2.0)[0] in ("open", "refused")


def test_our_own_lack_of_a_route_is_unreachable() -> None:
    assert probe([Target("255.255.255.255", 9)], 0.5)[0] in ("unreachable", "unknown", "timeout")


def test_no_socket_is_left_open(listening: socket.socket) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    probe([Target("127.0.0.1", port(listening))] * 20, 1.0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
