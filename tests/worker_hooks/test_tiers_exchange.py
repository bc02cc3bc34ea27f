"""Shares that go from node to node: whole, in time, and to the right node. What must not pass: test_tiers_refused."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.worker_hooks.tiers_stage import FOLDER, Pair, pair, wait_for
from worker_hooks.protocol.manifest import RankRef, rank_file_name, rank_folder_name
from worker_hooks.training.files import writing
from worker_hooks.training.tiers import exchange, link
from worker_hooks.training.tiers.exchange import CopyFailed
from worker_hooks.training.tiers.nodes import Nodes
from worker_hooks.training.tiers.share_stream import rank_file_digest

pytestmark = pytest.mark.torch
__all__ = ["pair"]


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
