"""A connection between two ranks: small JSON messages that carry a proof of the run's secret, and raw bytes.

Every call ends in time: a peer that is stopped, or a host that went away without a word, costs `STALL_S` at the most,
and a whole exchange its `limit_s`. The socket stays blocking and the kernel keeps the time (SO_RCVTIMEO), so that a
call brings as much as it is asked for and training, which needs the GIL, is seldom disturbed.

Theory of the proof. Each side sends a random number first; every message carries an HMAC over both numbers, the
sender's role, its count and the text. So nobody who does not know the secret is heard, nothing recorded is heard again,
and no message passes for another. Raw bytes carry none: what they must be is a digest in a message. They are not
encrypted, like all that ranks send each other.
"""

import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STALL_S = 20.0
WINDOW = 8 << 20
_NONCE = 16
_PROOF = 32
_MOST = 256 << 20  # a rank file holds what its rank tracks as JSON


class LinkError(Exception):
    """The other side is gone, too slow, or not of this run."""


class Link:
    """`role`: b"asks" of the side that connected, b"serves" of the other."""

    def __init__(self, connection: socket.socket, secret: bytes, role: bytes, limit_s: float) -> None:
        self._socket = connection
        self._secret = secret
        self._role = role
        self._until = time.monotonic() + limit_s
        self._counts = {b"asks": 0, b"serves": 0}
        connection.settimeout(None)
        self._patience(socket.SO_RCVTIMEO, STALL_S)
        self._patience(socket.SO_SNDTIMEO, STALL_S)
        mine = secrets.token_bytes(_NONCE)
        self._send(mine)
        theirs = self._receive(_NONCE)
        self._both = mine + theirs if role == b"asks" else theirs + mine

    def allow(self, limit_s: float) -> None:
        """From now on it may take so long."""
        self._until = time.monotonic() + limit_s

    def tell(self, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        self._send(struct.pack(">Q", len(text)) + self._proof(self._role, text) + text)

    def hear_at_last(self) -> dict[str, Any]:
        """The next message where the other side has something to finish first: it may take what time is left."""
        self._patience(socket.SO_RCVTIMEO, max(1.0, self._until - time.monotonic()))
        return self.hear()

    def hear(self, most: int = _MOST) -> dict[str, Any]:
        """The other side's next message, once its proof is right."""
        (size,) = struct.unpack(">Q", self._receive(8))
        if size > most:
            raise LinkError(f"a message of {size} bytes")
        proof, text = self._receive(_PROOF), self._receive(size)
        other = b"serves" if self._role == b"asks" else b"asks"
        if not hmac.compare_digest(proof, self._proof(other, text)):
            raise LinkError("the other side does not know the secret of this attempt")
        message: dict[str, Any] = json.loads(text)
        return message

    def send_file(self, path: Path, size: int, start: int = 0) -> bool:
        """So many bytes of the file; False, and no more of it, once the other side has said something: it gave up.

        Raises OSError where the file cannot be read, LinkError where it is shorter.
        """
        with path.open("rb", buffering=0) as file:
            done = 0
            while done < size:
                if self._spoken_to():
                    return False
                with self._in_time():
                    count = os.sendfile(self._socket.fileno(), file.fileno(), start + done, min(WINDOW, size - done))
                if count == 0:
                    raise LinkError(f"{path.name} ends at {start + done}, {start + size} bytes were written")
                done += count
        return True

    def receive_into(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            with self._in_time():
                count = self._socket.recv_into(view[done:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise LinkError("the other side closed the connection")
            done += count

    def drain(self) -> None:
        """Let the other side hear what was told to it: a connection closed over unread bytes takes that away."""
        with suppress(LinkError), memoryview(bytearray(1 << 20)) as view:
            while True:
                self.receive_into(view)

    def end(self) -> None:
        """From any thread: whoever waits in a call of this link gets a LinkError. Who opened the socket closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _spoken_to(self) -> bool:
        """Whether there is something to hear, or the end."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkError(str(error)) from None
        return True

    def _patience(self, option: int, seconds: float) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))

    def _proof(self, role: bytes, text: bytes) -> bytes:
        count = self._counts[role] = self._counts[role] + 1
        return hmac.digest(self._secret, b"%s %d %s " % (role, count, self._both) + text, "sha256")

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return bytes(data)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._in_time():
                view = view[self._socket.send(view[:WINDOW]) :]

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        if time.monotonic() > self._until:
            raise LinkError("it took longer than it may")
        try:
            yield
        except BlockingIOError:
            raise LinkError("the other side does not go on") from None
        except OSError as error:
            raise LinkError(str(error)) from None


def own_address(towards: str) -> str:
    """The address from which this host would speak to that one. Raises OSError."""
    family, kind, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)  # a datagram socket: this sends nothing
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
