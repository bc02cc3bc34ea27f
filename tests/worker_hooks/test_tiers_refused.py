"""What does not pass from node to node: damaged shares, another generation's, foreign files, what strangers ask for."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.tiers_stage import FOLDER, Pair, make_share, pair, wait_for
from worker_hooks.protocol.manifest import rank_file_name, rank_folder_name
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.files import writing
from worker_hooks.training.tiers import exchange, link
from worker_hooks.training.tiers.exchange import CopyFailed
from worker_hooks.training.tiers.share_stream import rank_file_digest

pytestmark = pytest.mark.torch
__all__ = ["pair"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flip": flip,
    "cut": lambda path: os.truncate(path, 50),
    "gone": Path.unlink,
}


@pytest.mark.parametrize(
    ("way", "damage", "said"),
    [
        ("put", "flip", "does not match its digest"),
        ("put", "cut", "ends at 50, 100000 bytes were"),
        ("put", "gone", "No such file"),
        ("get", "flip", "does not match its digest"),
        ("get", "cut", "has 50 bytes, 100000 were written"),
        ("get", "gone", "is missing"),
    ],
)
def test_a_damaged_share_does_not_arrive(pair: Pair, way: str, damage: str, said: str) -> None:
    data = pair.share(0)
    DAMAGE[damage](pair.folders[0] / FOLDER / rank_folder_name(0) / "tensors.bin")
    (pair.folders[0] / FOLDER / rank_file_name(0)).write_bytes(data)
    with pytest.raises(CopyFailed) as caught:
        if way == "put":
            pair.ends[0].put(1, FOLDER, data)
        else:
            pair.ends[1].get(0, FOLDER, 0, rank_file_digest(data))
    assert said in str(caught.value) and "tensors.bin" in str(caught.value)
    assert caught.value.damaged == (way == "get" or damage == "flip")
    wait_for(lambda: pair.landed(1, 0) == [])


def test_a_rank_file_other_than_the_manifests_is_not_sent(pair: Pair) -> None:
    (pair.folders[0] / FOLDER / rank_file_name(0)).write_bytes(pair.share(0) + b" ")
    with pytest.raises(CopyFailed, match=r"rank 0 on gpu1: rank-00000\.json does not match its digest"):
        pair.ends[1].get(0, FOLDER, 0, rank_file_digest(pair.share(1)))


def test_a_full_disk_there_fails_the_copy_with_the_files_name(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pair.share(0)

    def full(descriptor: int, piece: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write", full)
    with pytest.raises(CopyFailed, match=r"rank 1 on gpu2: .*No space left on device.*index\.json") as caught:
        pair.ends[0].put(1, FOLDER, data)
    assert not caught.value.damaged
    assert pair.landed(1, 0) == []


def test_a_full_disk_here_is_not_said_to_be_the_holders(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pair.share(0)
    (pair.folders[0] / FOLDER / rank_file_name(0)).write_bytes(data)

    def full(descriptor: int, piece: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "write", full)
    with pytest.raises(CopyFailed, match=r"^the disk here, not rank 0 on gpu1: .*No space left") as caught:
        pair.ends[1].get(0, FOLDER, 0, rank_file_digest(data))
    assert not caught.value.damaged


def test_a_share_of_another_generation_is_refused(pair: Pair) -> None:
    """A superseded attempt cannot put anything among its successor's shares."""
    data = make_share(pair.folders[0] / "step-00000120.g2", 0, 100, generation=2)
    with pytest.raises(CopyFailed, match="is not of generation 3"):
        pair.ends[0].put(1, "step-00000120.g2", data)


@pytest.mark.parametrize("name", ["../rank-00000.d/x", "rank-00001.d/x", "rank-00000.d/deep/x", "x"])
def test_a_rank_file_decides_nothing_outside_its_own_folder(pair: Pair, name: str) -> None:
    data = pair.share(0).replace(b"rank-00000.d/tensors.bin", name.encode())
    (pair.folders[0] / FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
    (pair.folders[0] / FOLDER / name).write_bytes(b"x" * 100_000)
    with pytest.raises((CopyFailed, MessageError)):  # the sender's own reader refuses it, or the receiver
        pair.ends[0].put(1, FOLDER, data)
    assert pair.landed(1, 0) == []
    assert not (pair.folders[1] / "rank-00000.d").exists()


@pytest.mark.parametrize("folder", ["../step-00000120.g3", "step-1", "/etc", ""])
def test_a_folder_that_is_no_checkpoint_is_refused(pair: Pair, folder: str) -> None:
    with pytest.raises(CopyFailed, match="is no checkpoint folder"):
        pair.ends[1].get(0, folder, 0, "sha256:" + "0" * 64)


def test_who_does_not_know_the_secret_is_not_answered(pair: Pair) -> None:
    data = pair.share(0)
    (pair.folders[0] / FOLDER / rank_file_name(0)).write_bytes(data)
    peer = pair.ends[0]._peers[0]
    with socket.create_connection((peer.address, peer.port)) as connection:
        stranger = link.Link(connection, bytes(32), b"asks", 5.0)
        stranger.tell({"do": "send", "folder": FOLDER, "rank": 0, "digest": rank_file_digest(data)})
        with pytest.raises(link.LinkError, match="closed the connection"):
            stranger.hear()


def test_a_rank_believes_nobody_else_at_a_peers_address(pair: Pair) -> None:
    """Whoever listens there now does not know the secret, and what it says is not heard."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                other = link.Link(connection, bytes(32), b"serves", 5.0)
                other.tell({"kept": True})
                time.sleep(0.2)

        threading.Thread(target=pretend, daemon=True).start()
        pair.ends[0]._peers[1] = exchange.Peer("gpu2", "127.0.0.1", server.getsockname()[1])
        with pytest.raises(CopyFailed):
            pair.ends[0].put(1, FOLDER, pair.share(0, 10))


def test_a_recorded_question_is_not_answered_twice(pair: Pair) -> None:
    """Both sides' random numbers are part of every proof."""
    left, right = socket.socketpair()
    with left, right:
        with ThreadPoolExecutor(1) as pool:
            asks = pool.submit(link.Link, left, b"secret", b"asks", 5.0)
            serves = link.Link(right, b"secret", b"serves", 5.0)
            asks.result().tell({"do": "send"})
        text = right.recv(4096, socket.MSG_PEEK)
        assert serves.hear() == {"do": "send"}
        left.sendall(text)
        with pytest.raises(link.LinkError, match="does not know the secret"):
            serves.hear()
