"""Starts real agents on this machine, as Slurm would on several nodes, and waits for what they do."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worker_hooks.controller_double import ControllerDouble
from worker_hooks.agent.identity import Identity
from worker_hooks.protocol.generations import newest_number

RUN_ID = "tj-0123456789ab"
ROOT = Path(__file__).parents[2]
RANK = Path(__file__).with_name("fake_rank.py")


def until(what: Callable[[], Any], limit_s: float = 20.0) -> Any:
    """Waits until `what()` is true and returns it; the limit only ends a broken test."""
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


class Stage:
    """One run: checkpoint root, identity, controller. Agents are subprocesses, killed at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.run = self.root / RUN_ID
        self.spool = self.run / "spool"
        self.controller = ControllerDouble()
        self.agents: list[subprocess.Popen[str]] = []
        self.identity = Identity(RUN_ID, "secret-token", folder / "identity.json", self.controller.url, registered=True)
        self.identity.save()

    def environ(self, node: str = "gpu1", index: int = 0, nodes: int = 1, restart: int = 0) -> dict[str, str]:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RELUME_"))}
        return {
            **keep,
            "SLURM_JOB_ID": "7",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_NODEID": str(index),
            "SLURM_NNODES": str(nodes),
            "SLURMD_NODENAME": node,
            "SLURM_JOB_NODELIST": f"gpu[1-{nodes}]",
            "SLURM_RESTART_COUNT": str(restart),
            "RELUME_IDENTITY": str(self.identity.path),
            "RELUME_RUN_ID": RUN_ID,
            "TMPDIR": str(self.folder / "tmp"),
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *options: str, program: tuple[str, ...] = (), environ: dict[str, str] | None = None, **plan: Any):
        program = program or (sys.executable, str(RANK), json.dumps(plan))
        call = "import sys; from worker_hooks.cli.main import main; sys.exit(main())"
        agent = subprocess.Popen(
            [sys.executable, "-c", call, "run", "--checkpoint-root", str(self.root), *options, "--", *program],
            env=environ or self.environ(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.agents.append(agent)
        return agent

    def end(self, agent: "subprocess.Popen[str]") -> tuple[int, str]:
        """(exit code, standard error) of an agent that ends by itself."""
        _, errors = agent.communicate(timeout=40)
        return agent.returncode, errors

    def rank_pids(self) -> list[int]:
        """The ranks of the newest message."""
        return [rank["pid"] for rank in self.controller.messages[-1]["ranks"]] if self.controller.messages else []

    def generation(self) -> int:
        return newest_number(self.run)

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGCONT)
                agent.kill()
            agent.communicate(timeout=10)
        self.controller.away()
        assert not self.controller.conflicts, "a sequence number came twice with different content"


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    (folder / "tmp").mkdir()
    made = Stage(folder)
    try:
        yield made
    finally:
        made.close()


def alive(pid: int) -> bool:
    """Is there a process, zombies not counted?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
