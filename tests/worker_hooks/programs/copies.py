"""Two ranks on two nodes: rank 0 puts a share on rank 1's node, whose disk is slow. argv: a folder, and the name of the
checkpoint of which `gpu1/tj-1` in it holds the share; its rank file is `rank_file.json`. Files tell how far they are
(`mid-copy`, `first`, `second`, `counted`, `ended`) and tell them to go on (`again`, `end`, `end at once`)."""

import os
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist

from worker_hooks.training.comms import Coordinator
from worker_hooks.training.files import writing
from worker_hooks.training.tiers import link
from worker_hooks.training.tiers.exchange import CopyFailed, Exchange
from worker_hooks.training.tiers.nodes import Nodes

PLACE, FOLDER = Path(sys.argv[1]), sys.argv[2]


def slow_write(descriptor: int, piece: memoryview) -> int:
    count = os.write(descriptor, piece)
    (PLACE / "mid-copy").touch()
    if not (PLACE / "again").exists():
        time.sleep(0.3)
    return count


def put(exchange: Exchange, data: bytes, told: str) -> None:
    try:
        exchange.put(1, FOLDER, data)
        said = "kept"
    except CopyFailed as error:
        said = str(error)
    (PLACE / f".{told}").write_text(said)
    (PLACE / f".{told}").rename(PLACE / told)


def copy(exchange: Exchange, data: bytes) -> None:
    put(exchange, data, "first")
    while not (PLACE / "again").exists():
        time.sleep(0.01)
    put(exchange, data, "second")


def main() -> None:
    dist.init_process_group("gloo")
    coordinator, nodes = Coordinator(), Nodes(("gpu1", "gpu2"))
    folder = PLACE / nodes.names[coordinator.rank] / "tj-1"
    link.STALL_S = 1.0
    if coordinator.rank == 1:
        writing.write = slow_write
    exchange = Exchange(coordinator, nodes, folder, 3)
    if coordinator.rank == 0:
        data = (PLACE / "rank_file.json").read_bytes()
        threading.Thread(target=copy, args=(exchange, data), daemon=True).start()
    while not (PLACE / "end").exists():
        if coordinator.rank == 0:
            with (PLACE / "counted").open("a") as counted:
                counted.write(".")
            if (PLACE / "end at once").exists():
                (PLACE / "ended").touch()
                break
        time.sleep(0.01)
    exchange.close()


main()
