"""Shares that go from node to node: whole or not at all, in time, and only between ranks of the attempt."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.tiers_stage import FOLDER, make_share, wait_for
from worker_hooks.protocol.manifest import RankRef, rank_file_name, rank_folder_name
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.files import writing
from worker_hooks.training.tiers import exchange, link
from worker_hooks.training.tiers.exchange import CopyFailed, Exchange
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.share_stream import rank_file_digest

pytestmark = pytest.mark.torch


class Together:
    """The ranks of one test, as threads."""

    def __init__(self, world_size: int) -> None:
        self.said: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=30)


class InThread:
    """What `Exchange` asks of a coordinator."""

    def __init__(self, together: Together, rank: int) -> None:
        self.rank, self._together = rank, together

    def gather(self, value: Any) -> list[Any]:
        self._together.said[self.rank] = value
        self._together.barrier.wait()
        said = list(self._together.said)
        self._together.barrier.wait()
        return said

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]


class Pair:
    """Ranks 0 and 1 on two nodes, each with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        together, nodes = Together(2), Nodes(("gpu1", "gpu2"))
        self.folders = [folder / name / "tj-1" for name in nodes.names]
        with ThreadPoolExecutor(2) as pool:
            opened = [
                pool.submit(Exchange, InThread(together, rank), nodes, self.folders[rank], 3)  # type: ignore[arg-type]
                for rank in range(2)
            ]
            self.ends = [end.result() for end in opened]

    def share(self, rank: int, size: int = 100_000) -> bytes:
        return make_share(self.folders[rank] / FOLDER, rank, size)

    def landed(self, node: int, rank: int) -> list[str]:
        """Everything that lies in a node's folder of that checkpoint, hidden files too."""
        folder = self.folders[node] / FOLDER
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for end in made.ends:
        end.close()


# --- what arrives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, 2 * link.WINDOW + 5])
def test_a_share_that_was_put_is_the_same_bytes(pair: Pair, size: int) -> None:
    """Also one that is not a whole number of blocks, and one longer than the memory that it passes through."""
    data = pair.share(0, size)
    pair.ends[0].put(1, FOLDER, data)
    there = pair.folders[1] / FOLDER
    assert (there / rank_file_name(0)).read_bytes() == data
    for path in (pair.folders[0] / FOLDER / rank_folder_name(0)).iterdir():
        assert (there / rank_folder_name(0) / path.name).read_bytes() == path.read_bytes()
    assert len(pair.landed(1, 0)) == 4, "the folder, two files of tensors and the rank file; nothing else"


def test_a_share_that_was_fetched_is_the_same_bytes(pair: Pair) -> None:
    data = pair.share(0)
    (pair.folders[0] / FOLDER / rank_file_name(0)).write_bytes(data)
    pair.ends[1].get(0, FOLDER, 0, rank_file_digest(data))
    assert (pair.folders[1] / FOLDER / rank_file_name(0)).read_bytes() == data
    assert pair.landed(0, 0) == pair.landed(1, 0)


def test_parts_of_a_share_come_at_their_places(pair: Pair, tmp_path: Path) -> None:
    data = pair.share(0, 3 * link.WINDOW)
    folder = pair.folders[0] / FOLDER
    (folder / rank_file_name(0)).write_bytes(data)
    name, stretches = (
        f"{rank_folder_name(0)}/tensors.bin",
        [(5, 100), (1000, 2 * link.WINDOW), (3 * link.WINDOW - 1, 1)],
    )
    pair.ends[1].get_parts(0, FOLDER, RankRef(0, "", rank_file_digest(data)), {name: stretches}, tmp_path / "parts")
    whole, parts = (folder / name).read_bytes(), (tmp_path / "parts" / name).read_bytes()
    assert len(parts) == len(whole)
    for start, size in stretches:
        assert parts[start : start + size] == whole[start : start + size]
    assert parts[200:900] == bytes(700), "what was not asked for is a hole"
    assert pair.landed(1, 0) == [], "and no share of this node"


def test_both_put_at_the_same_time(pair: Pair) -> None:
    data = [pair.share(rank, 3_000_000) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for put in [pool.submit(pair.ends[rank].put, 1 - rank, FOLDER, data[rank]) for rank in range(2)]:
            put.result()
    for rank in range(2):
        assert (pair.folders[1 - rank] / FOLDER / rank_file_name(rank)).read_bytes() == data[rank]


def test_half_a_share_that_an_earlier_copy_left_is_replaced(pair: Pair) -> None:
    data = pair.share(0)
    half = pair.folders[1] / FOLDER / rank_folder_name(0)
    half.mkdir(parents=True)
    (half / "tensors.bin").write_bytes(b"half")
    pair.ends[0].put(1, FOLDER, data)
    assert (half / "tensors.bin").stat().st_size == 100_000


def test_a_copy_that_nobody_waited_for_is_replaced(pair: Pair) -> None:
    """It came too late, so that the share's rank file says that there is none."""
    late = pair.share(0)
    pair.ends[0].put(1, FOLDER, late)
    data = late.replace(b'"finite": true', b'"finite": true, "copy": null')
    pair.ends[0].put(1, FOLDER, data)
    assert (pair.folders[1] / FOLDER / rank_file_name(0)).read_bytes() == data != late


# --- what must not pass -------------------------------------------------------------------------------------------


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


def test_more_askers_than_turns_wait_for_theirs(pair: Pair) -> None:
    """As when many nodes of a replicated model want the same share."""
    data = pair.share(0, 3 * link.WINDOW)
    (pair.folders[0] / FOLDER / rank_file_name(0)).write_bytes(data)
    pair.ends[0]._turn = threading.BoundedSemaphore(2)
    name = f"{rank_folder_name(0)}/tensors.bin"
    share = RankRef(0, rank_file_name(0), rank_file_digest(data))
    into = [pair.folders[1] / f"asker-{number}" for number in range(10)]
    with ThreadPoolExecutor(len(into)) as pool:
        list(pool.map(lambda folder: pair.ends[1].get_parts(0, FOLDER, share, {name: [(0, 5000)]}, folder), into))
    assert all(folder.exists() for folder in into)


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


# --- peers that do not go on --------------------------------------------------------------------------------------


def test_nobody_listens_there(pair: Pair) -> None:
    pair.ends[1].close()
    with pytest.raises(CopyFailed, match=r"rank 1 on gpu2: .*refused"):
        pair.ends[0].put(1, FOLDER, pair.share(0))


def test_a_peer_that_never_answers_costs_the_stall_limit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "STALL_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        pair.ends[0]._peers[1] = exchange.Peer("gpu2", "127.0.0.1", server.getsockname()[1])
        with pytest.raises(CopyFailed, match="rank 1 on gpu2: the other side does not go on"):
            pair.ends[0].put(1, FOLDER, pair.share(0))


def test_a_peer_that_is_too_slow_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on all the time, only not fast enough."""

    def slow(descriptor: int, piece: memoryview) -> int:
        time.sleep(0.4)
        return os.write(descriptor, piece)

    monkeypatch.setattr(exchange, "time_for", lambda size: 0.3)
    monkeypatch.setattr(writing, "write", slow)
    with pytest.raises(CopyFailed, match=r"longer than it may|closed the connection|reset|Broken pipe"):
        pair.ends[0].put(1, FOLDER, pair.share(0, 6 * link.WINDOW))
    wait_for(lambda: pair.landed(1, 0) == [])


def test_closing_ends_what_is_under_way_on_both_sides(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    writing_began, go_on = threading.Event(), threading.Event()

    def slow(descriptor: int, piece: memoryview) -> int:
        writing_began.set()
        go_on.wait(30)
        return os.write(descriptor, piece)

    monkeypatch.setattr(writing, "write", slow)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(pair.ends[0].put, 1, FOLDER, pair.share(0, 8 * link.WINDOW))
        assert writing_began.wait(30)
        pair.ends[0].close()
        with pytest.raises(CopyFailed):
            put.result(30)
    go_on.set()
    wait_for(lambda: pair.landed(1, 0) == [])


# --- nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "partners"),
    [
        (("a",), [None]),
        (("a", "a"), [None, None]),
        (("b", "a"), [1, 0]),
        (("a", "a", "b", "b"), [2, 3, 0, 1]),
        (("a", "b", "a", "b", "c", "c"), [1, 4, 3, 5, 0, 2]),
        (("a", "a", "a", "b"), [3, 3, 3, 0]),
    ],
)
def test_the_partner_is_the_rank_at_the_same_place_on_the_next_node(
    names: tuple[str, ...], partners: list[int | None]
) -> None:
    assert [Nodes(names).partner(rank) for rank in range(len(names))] == partners
