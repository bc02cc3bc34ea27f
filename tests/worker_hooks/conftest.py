"""Ranks for the torch tests: a fork server per session, one call to start and judge a world."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.checkpoint_shelf import Shelf
from tests.worker_hooks.sbatch_desk import Desk, open_desk

HERE = Path(__file__).parent
TINY = HERE / "programs" / "tiny.py"
EXAMPLES = HERE.parents[1] / "examples"
RUN_ID = "tj-4f2a9c0b11de"


class ForkServer:
    """`prefix`: a command that becomes the server, such as one that gives it a mount namespace."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix
        # A session that starts no rank pays for no server.
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, str(HERE / "programs" / "fork_server.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                cwd=HERE.parents[1],
            )
            self._answer(60)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        return self._answer(timeout)

    @property
    def pid(self) -> int:
        assert self._process is not None, "nothing was started yet"
        return self._process.pid

    def _answer(self, timeout: float) -> Any:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        assert ready, "the fork server does not answer"
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(timeout=10)
            self._process.stdout.close()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@dataclass
class Ranks:
    """A started world."""

    server: ForkServer
    pids: list[int]
    logs: list[Path]

    def wait(self, timeout: float = 60) -> list[int]:
        """Exit codes by rank, negative for a signal. A rank that does not end in time is killed and fails the test."""
        statuses = self.server.ask({"wait": self.pids, "timeout": timeout}, timeout + 30)["statuses"]
        hanging = [pid for pid, status in zip(self.pids, statuses, strict=True) if status is None]
        for number in (signal.SIGUSR2, signal.SIGKILL) if hanging else ():
            for pid in hanging:
                os.kill(pid, number)
            time.sleep(0.2)
        if hanging:
            self.server.ask({"wait": hanging, "timeout": 10}, 40)
            pytest.fail(f"ranks hang:\n{self.text()}")
        return statuses

    def text(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs if log.exists())


class World:
    """Starts programs on `tmp_path`; every call is a new attempt on a new port. Its ranks believe to run on `nodes`
    nodes, `gpu1` and so on."""

    nodes = 1

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server = server
        self.folder = folder
        self.root = folder / "checkpoints"
        self._attempts = 0

    @property
    def run(self) -> Path:
        return self.root / RUN_ID

    def start(
        self,
        script: Path,
        argv: list[str],
        ranks: int,
        env: dict[str, str] | None = None,
        imports: tuple[str, ...] = (),
    ) -> Ranks:
        self._attempts += 1
        port = free_port()
        logs = [self.folder / f"attempt{self._attempts}.rank{rank}.log" for rank in range(ranks)]
        envs = [
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RELUME_RUN_ID": RUN_ID,
                "SLURMD_NODENAME": f"gpu{rank * self.nodes // ranks + 1}",
                **(env or {}),
            }
            for rank in range(ranks)
        ]
        request = {"script": str(script), "argv": argv, "envs": envs, "logs": [str(log) for log in logs]}
        request["imports"] = list(imports)
        return Ranks(self._server, self._server.ask(request, 90)["pids"], logs)

    def tiny(self, ranks: int, *, env: dict[str, str] | None = None, **options: Any) -> Ranks:
        options = {"root": str(self.root), "out": str(self.folder / "out"), **options}
        return self.start(TINY, [json.dumps(options)], ranks, env)

    def finish(self, ranks: int, *, env: dict[str, str] | None = None, **options: Any) -> list[dict[str, Any]]:
        """Run to a clean end; what each rank wrote, with its kept losses."""
        from worker_hooks.protocol.losses import read_losses

        started = self.tiny(ranks, env=env, **options)
        assert started.wait() == [0] * ranks, started.text()
        ends = [json.loads((self.folder / f"out.{rank}.json").read_text()) for rank in range(ranks)]
        for rank, end in enumerate(ends):
            if "losses" not in end:
                end["losses"] = list(read_losses(self.run, rank).values())
        return ends

    def events(self, run_dir: Path, rank: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (run_dir / f"events-{rank}.jsonl").read_text().splitlines()]

    def new_run_dir(self, name: str, ranks: int) -> Path:
        from worker_hooks.protocol.slots import create_slots

        folder = self.folder / name
        folder.mkdir()
        create_slots(folder / "slots", ranks)
        return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def world(fork_server: ForkServer, tmp_path: Path) -> World:
    return World(fork_server, tmp_path)


@pytest.fixture
def killed(world: World) -> World:
    """Two ranks, checkpoints at 4 and 8 committed, rank 1 killed at 11."""
    assert all(world.tiny(2, die={"rank": 1, "step": 11}).wait())
    assert [folder.name for folder in sorted(world.run.glob("step-*"))] == ["step-00000004.g1", "step-00000008.g1"]
    return world


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A user's account with a fake sbatch and a controller that listens."""
    yield from open_desk(tmp_path)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """A run's folder without a generation yet."""
    return Shelf(tmp_path)
