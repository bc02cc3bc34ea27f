"""Shares of checkpoints that go from one node's folder to another's, while training goes on or before it begins.

Each rank listens at the address that it has towards the others; a share travels on a connection of its own, in threads
that training does not wait for, and no process group knows of it (docs/decisions/0019). A peer that is dead, stopped,
full or slow is a `CopyFailed` that says so, at the latest after the time the share may take; the next copy begins anew.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from worker_hooks.protocol.manifest import RankRef, decode_rank_file, parse_folder, rank_file_name
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.tiers.link import Link, LinkError, is_loopback, own_address
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.share_stream import (
    Parts,
    ShareDamaged,
    missing,
    rank_file_digest,
    receive_parts,
    receive_share,
    send_parts,
    send_share,
)

GREETING_S = 10.0
GRACE_S = 30.0
_SLOWEST = 20e6  # bytes per second
_AT_A_TIME = 64
_BACKLOG = 64
_FIRST_WORDS = 4096


class CopyFailed(Exception):
    """A share did not get there. `damaged`: because what the other side has is not what was saved."""

    def __init__(self, message: str, *, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


@dataclass(frozen=True)
class Peer:
    """Where a rank listens; `problem` says why it does not."""

    node: str
    address: str
    port: int
    problem: str | None = None


class Exchange:
    """One rank's end. `folder`: this run's folder on this node."""

    def __init__(self, coordinator: Coordinator, nodes: Nodes, folder: Path, generation: int) -> None:
        """Collective. A rank that cannot listen says so to those who ask it for something; nothing is raised here."""
        self._rank = coordinator.rank
        self._folder = folder
        self._generation = generation
        self._links: set[Link] = set()
        self._closed = False
        self._changed = threading.Lock()
        self._turn = threading.BoundedSemaphore(_AT_A_TIME)
        self._server, mine = _listen(_address(coordinator), nodes.names[self._rank])
        self._peers = [Peer(**peer) for peer in coordinator.gather(asdict(mine))]
        self._secret = bytes.fromhex(coordinator.broadcast(secrets.token_hex(32) if self._rank == 0 else None))
        if self._server is not None:
            threading.Thread(target=self._serve, args=(self._server,), name="relume-exchange", daemon=True).start()

    def put(self, to: int, folder: str, rank_file: bytes) -> None:
        """Copy this rank's share of checkpoint `folder` to the node of rank `to`: durable there when this returns.

        The share's files are read from this node's folder; its rank file need not be written yet. Raises CopyFailed.
        """
        size = _size(rank_file)
        ask = {"do": "keep", "folder": folder, "rank": self._rank, "digest": rank_file_digest(rank_file), "bytes": size}
        with self._asking(to, time_for(size)) as link:
            link.tell(ask)
            send_share(link, self._folder / folder, rank_file)
            _demand(link.hear_at_last())

    def get(self, holder: int, folder: str, rank: int, digest: str) -> None:
        """Copy the share of rank `rank` from the node of rank `holder` into this node's folder. Raises CopyFailed.

        `digest`: of the share's rank file, as the manifest names it.
        """
        with self._asking(holder, time_for(0)) as link:
            link.tell({"do": "send", "folder": folder, "rank": rank, "digest": digest})
            link.allow(time_for(_demand(link.hear())["bytes"]))
            receive_share(link, self._folder / folder, rank, digest)

    def get_parts(self, holder: int, folder: str, share: RankRef, parts: Parts, into: Path) -> None:
        """Copy stretches of files of a share from the node of rank `holder` to `into`. Raises CopyFailed."""
        with self._asking(holder, time_for(0)) as link:
            link.tell({"do": "send parts", "folder": folder, "rank": share.rank, "digest": share.digest})
            sizes = _demand(link.hear())["sizes"]
            link.allow(time_for(_bytes_of(parts)))
            link.tell({"parts": parts})
            receive_parts(link, into, parts, sizes)

    def close(self) -> None:
        """Ends whatever is under way, on both sides."""
        with self._changed:
            self._closed = True
            links = list(self._links)
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            self._server.close()
        for link in links:
            link.end()

    @contextmanager
    def _asking(self, to: int, limit_s: float) -> Iterator[Link]:
        peer = self._peers[to]
        try:
            if peer.problem is not None:
                raise LinkError(peer.problem)
            with self._connected(peer) as connection, self._linked(connection, b"asks", limit_s) as link:
                yield link
        except ShareDamaged as error:
            raise CopyFailed(f"rank {to} on {peer.node}: {error}", damaged=True) from None
        except LinkError as error:
            raise CopyFailed(f"rank {to} on {peer.node}: {error}") from None
        except OSError as error:  # what the connection has to say is a LinkError
            raise CopyFailed(f"the disk here, not rank {to} on {peer.node}: {error}") from None

    @staticmethod
    def _connected(peer: Peer) -> socket.socket:
        try:
            return socket.create_connection((peer.address, peer.port), timeout=GREETING_S)
        except OSError as error:
            raise LinkError(str(error)) from None

    @contextmanager
    def _linked(self, connection: socket.socket, role: bytes, limit_s: float) -> Iterator[Link]:
        link = Link(connection, self._secret, role, limit_s)
        with self._changed:
            if self._closed:
                raise LinkError("the exchange was closed")
            self._links.add(link)
        try:
            yield link
        finally:
            with self._changed:
                self._links.discard(link)

    # --- what the others ask for ------------------------------------------------------------------------------------

    def _serve(self, server: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = server.accept()
            except OSError:  # closed, or no descriptors left: a moment later there may be some
                time.sleep(0.1)
                continue
            if not self._turn.acquire(timeout=GREETING_S):  # the asker waits as long for the first word
                connection.close()
                continue
            try:
                threading.Thread(target=self._answer, args=(connection,), name="relume-exchange", daemon=True).start()
            except RuntimeError:  # no thread to be had: this question has no answer, the next one may
                connection.close()
                self._turn.release()

    def _answer(self, connection: socket.socket) -> None:
        """One question of one rank. Who does not know the secret gets no answer."""
        try:
            with (
                suppress(LinkError, OSError),
                connection,
                self._linked(connection, b"serves", GREETING_S) as link,
            ):
                asked = link.hear(_FIRST_WORDS)
                try:
                    self._do(link, asked)
                except (ShareDamaged, OSError) as error:
                    link.tell({"failed": str(error), "damaged": isinstance(error, ShareDamaged)})
                    link.drain()
        finally:
            self._turn.release()

    def _do(self, link: Link, asked: dict[str, Any]) -> None:
        folder, rank, digest = asked["folder"], asked["rank"], asked["digest"]
        place = parse_folder(folder)
        if place is None:
            raise ShareDamaged(f"{folder[:80]!r} is no checkpoint folder")
        if asked["do"] == "keep":
            if place[1] != self._generation:
                raise ShareDamaged(f"{folder} is not of generation {self._generation}")
            link.allow(time_for(asked["bytes"]))
            receive_share(link, self._folder / folder, rank, digest)
            link.tell({"kept": True})
        else:
            self._send(link, self._folder / folder, rank, digest, parts=asked["do"] == "send parts")

    @staticmethod
    def _send(link: Link, folder: Path, rank: int, digest: str, *, parts: bool) -> None:
        data = (folder / rank_file_name(rank)).read_bytes()
        if rank_file_digest(data) != digest:
            raise ShareDamaged(f"{rank_file_name(rank)} does not match its digest")
        files = decode_rank_file(json.loads(data)).files
        problem = missing(folder, files)
        if problem is not None:
            raise ShareDamaged(problem)
        sizes = {entry.name: entry.bytes for entry in files}
        size = sum(sizes.values())
        link.allow(time_for(size))
        link.tell({"bytes": size, "sizes": sizes})
        try:
            if parts:
                asked = {name: found for name, found in link.hear()["parts"].items() if name in sizes}
                send_parts(link, folder, asked)
            else:
                send_share(link, folder, data)
        except OSError as error:  # among raw bytes no word is heard: the connection ends
            raise LinkError(str(error)) from None


def time_for(size: int) -> float:
    """Seconds that the copy of so many bytes may take in all."""
    return GRACE_S + size / _SLOWEST


def _size(rank_file: bytes) -> int:
    return sum(entry.bytes for entry in decode_rank_file(json.loads(rank_file)).files)


def _bytes_of(parts: Parts) -> int:
    return sum(size for stretches in parts.values() for _, size in stretches)


def _demand(answer: dict[str, Any]) -> dict[str, Any]:
    if "failed" in answer:
        raise ShareDamaged(answer["failed"]) if answer["damaged"] else LinkError(answer["failed"])
    return answer


def _listen(address: str, node: str) -> tuple[socket.socket | None, Peer]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    except OSError as error:
        return None, Peer(node, address, 0, f"{node} cannot listen at {address}: {error}")
    return server, Peer(node, address, server.getsockname()[1])


def _address(coordinator: Coordinator) -> str:
    """This rank's address towards the others: the one it met them by. Collective.

    A host may call itself by a loopback name: then it is the address towards a rank that does not.
    """
    found = _towards(os.environ.get("MASTER_ADDR") or "localhost")
    outside = [address for address in coordinator.gather(found) if not is_loopback(address)]
    return _towards(outside[0]) if outside and is_loopback(found) else found


def _towards(host: str) -> str:
    try:
        return own_address(host)
    except OSError:
        return "127.0.0.1"
