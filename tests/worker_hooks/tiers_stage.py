"""Shares on nodes, for tests of the tiers: made by hand, exchanged by threads, resumed from by ranks."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import ForkServer, Ranks, World
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.losses import read_losses
from worker_hooks.protocol.manifest import FileEntry, RankFile, encode_rank_file, parse_folder, rank_folder_name
from worker_hooks.training.files.digests import DEFAULT, file_digest
from worker_hooks.training.tiers.exchange import Exchange
from worker_hooks.training.tiers.nodes import Nodes

FOLDER = "step-00000120.g3"
KEYS = ("losses", "parameters", "buffers", "average", "lr", "next_random")
WRAPS: dict[str, dict[str, Any]] = {"ddp": {}, "fsdp": {"wrap": "fsdp", "batch_norm": False}}
# The last update before the kill is 11: the newest node-local checkpoint is 10, the newest shared one 8.
DIES = {"die": {"rank": None, "step": 11}, "every": 4}


def make_share(folder: Path, rank: int, size: int, *, generation: int = 3) -> bytes:
    """Files of a share in `folder`, and the rank file that describes them, which is returned and not written."""
    place = folder / rank_folder_name(rank)
    place.mkdir(parents=True, exist_ok=True)
    (place / "tensors.bin").write_bytes(random.Random(rank).randbytes(size))
    (place / "index.json").write_text("{}")
    files = tuple(
        FileEntry(f"{place.name}/{path.name}", path.stat().st_size, file_digest(path, DEFAULT))
        for path in sorted(place.iterdir())
    )
    step, _ = parse_folder(folder.name) or (0, 0)
    share = RankFile(rank, generation, step, files, {"state": {}}, {}, {"finite": True}, {}, (), {"world_size": 2})
    return encode_json(encode_rank_file(share))


def wait_for(answer: Callable[[], bool], started: Ranks | None = None) -> None:
    deadline = time.monotonic() + 60
    while not answer():
        assert time.monotonic() < deadline, started.text() if started else "it never came"
        time.sleep(0.01)


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


class Cluster:
    """A training job on two nodes with a local disk each."""

    def __init__(self, server: ForkServer, folder: Path, wrap: dict[str, Any]) -> None:
        folder.mkdir()
        self.world = World(server, folder)
        self.world.nodes = 2
        self.wrap = wrap
        self.disks = folder / "nvme"
        self.env = {"RELUME_LOCAL": str(self.disks / "{node}"), "RELUME_LOCAL_EVERY": "2"}

    def disk(self, number: int) -> Path:
        return self.disks / f"gpu{number}" / self.world.run.name

    def share(self, node: int, step: int, rank: int) -> Path:
        return self.disk(node) / f"step-{step:08d}.g1" / f"rank-{rank:05d}.d"

    def killed(self, ranks: int = 2, *, peer: bool = False, **options: Any) -> None:
        started = self.world.tiny(ranks, env=self._env(peer), **{**DIES, **self.wrap, **options})
        assert any(status == -9 for status in started.wait()), started.text()

    def resumed(self, ranks: int = 2, *, name: str = "second", peer: bool = False, **options: Any) -> "Resumed":
        run_dir = self.world.new_run_dir(name, ranks)
        env = {**self._env(peer), "RELUME_RUN_DIR": str(run_dir)}
        ends = self.world.finish(ranks, env=env, **{"every": 4, **self.wrap, **options})
        return Resumed(ends, [self.world.events(run_dir, rank) for rank in range(ranks)])

    def _env(self, peer: bool) -> dict[str, str]:
        return {**self.env, "RELUME_PEER": str(int(peer))}


class Resumed:
    def __init__(self, ends: list[dict[str, Any]], events: list[list[dict[str, Any]]]) -> None:
        self.ends = ends
        self.events = events
        loaded = [event["data"] for found in events for event in found if event.get("name") == "loaded"]
        assert len({event["step"] for event in loaded}) == 1, "all ranks end on one step"
        self.step = loaded[0]["step"]
        self.places = [event.get("restored_from", {}) for event in loaded]

    def signs(self, code: str) -> list[str]:
        return [event["raw"] for event in self.events[0] if event.get("code") == code]

    def checkpoints(self, tier: str, state: str) -> list[dict[str, Any]]:
        found = [event for event in self.events[0] if event["kind"] == "checkpoint" and event["state"] == state]
        return [record for record in found if record.get("tier", "shared") == tier]


@pytest.fixture(params=WRAPS)
def cluster(request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path: Path) -> Cluster:
    return Cluster(fork_server, tmp_path / "job", WRAPS[request.param])


@pytest.fixture
def replicated(fork_server: ForkServer, tmp_path: Path) -> Cluster:
    return Cluster(fork_server, tmp_path / "job", {})


_references: dict[str, list[dict[str, Any]]] = {}


def same_as_uninterrupted(cluster: Cluster, resumed: Resumed, ranks: int = 2) -> None:
    key = json.dumps([cluster.wrap, ranks])
    if key not in _references:
        folder = cluster.world.folder / "reference"
        folder.mkdir()
        world = World(cluster.world._server, folder)
        ends = world.finish(ranks, every=0, **cluster.wrap)
        for rank, end in enumerate(ends):
            end["losses"] = list(read_losses(world.run, rank).values())
        _references[key] = ends
    for rank, (reference, end) in enumerate(zip(_references[key], resumed.ends, strict=True)):
        differing = [name for name in KEYS if end[name] != reference[name]]
        assert not differing, f"rank {rank}: {differing} are not the uninterrupted run's"
