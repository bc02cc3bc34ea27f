"""The job owner's account on a real cluster: worker_hooks, scripts, a controller that listens to the nodes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.lab.cluster import Lab
from tests.worker_hooks.controller_double import ControllerDouble

REPOSITORY = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
CALL = "import sys; from worker_hooks.cli.main import main; sys.exit(main())"
SBATCH = (PYTHON, "-c", CALL, "sbatch")
# One process makes many calls: [{"argv", "stdin", "environ"}] in, [[exit code, stdout, stderr]] out.
_BATCH = """\
import json, os, subprocess, sys
answers = []
for call in json.load(sys.stdin):
    environ = {**os.environ, **call.get("environ", {})}
    stdin = call.get("stdin", "")
    done = subprocess.run(call["argv"], input=stdin, env=environ, capture_output=True, text=True, timeout=60)
    answers.append([done.returncode, done.stdout, done.stderr])
json.dump(answers, sys.stdout)
"""


def eventually(what: Callable[[], Any], seconds: float = 40) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)
    return found


@dataclass(frozen=True)
class Answer:
    code: int
    stdout: str
    stderr: str


@dataclass
class Desk:
    lab: Lab
    home: Path
    controller: ControllerDouble

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self.home / "site"),
            "RELUME_URL": self.controller.url,
            "RELUME_API_TOKEN": "user-token",
            "RELUME_STATE_DIR": str(self.home / "state"),
        }

    def submit(
        self, *argv: str, stdin: str = "", check: bool = True, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **environ}
        return self.lab.run(*SBATCH, *argv, stdin=stdin, cwd=self.home, env=environ, check=check)

    def calls(self, calls: Sequence[dict[str, Any]], **environ: str) -> list[Answer]:
        """Many commands as the owner, one after the other."""
        done = self.lab.run(
            *(PYTHON, "-c", _BATCH),
            stdin=json.dumps(list(calls)),
            cwd=self.home,
            env={**self.environ, **environ},
            timeout=120,
        )
        return [Answer(*answer) for answer in json.loads(done.stdout)]

    def script(self, body: str, header: str = "", name: str = "job.sh") -> str:
        path = self.home / name
        path.write_text(f"#!/bin/sh\n{header}\n{body}\n", encoding="utf-8")
        return str(path)

    def job(self, job_id: str) -> dict[str, str]:
        text = self.lab.run("scontrol", "show", "job", "-o", job_id).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text.splitlines()[0]))

    def ended(self, job_id: str) -> dict[str, str]:
        states = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")
        return eventually(lambda: job if (job := self.job(job_id))["JobState"] in states else None)

    @property
    def identities(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in (self.home / "state" / "identities").glob("*.json")]

    def identity(self, job_id: str) -> dict[str, Any]:
        (identity,) = [item for item in self.identities if item["slurm_job_id"] == job_id]
        return identity

    def last_message(self, node: str, generation: int = 1) -> dict[str, Any] | None:
        found = [m for m in self.controller.messages if (m["node"], m["generation"]) == (node, generation)]
        return found[-1] if found else None

    def ranks(self, wish: dict[str, Any], srun: str = "", ranks: int = 2) -> str:
        """A line of a batch script: a job step of fake ranks under `relume run`."""
        text = json.dumps(wish).replace('"', '\\"')
        run = f"{PYTHON} -c '{CALL}' run --ranks {ranks} --interface eth1"
        step = f"srun {srun} --ntasks-per-node=1 --kill-on-bad-exit=1"
        return f'{step} {run} -- {PYTHON} {self.home}/fake_rank.py "{text}"'


def open_desk(lab: Lab) -> Iterator[Desk]:
    home = lab.dir / "home" / "owner"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "worker_hooks", home / "site" / "worker_hooks", ignore=ignore)
    shutil.copy(REPOSITORY / "tests" / "worker_hooks" / "fake_rank.py", home / "fake_rank.py")
    made = Desk(lab, home, ControllerDouble(lab.management_host))
    yield made
    made.controller.away()
    for name in ("site", "state", "ck", "relume-checkpoints"):
        shutil.rmtree(home / name, ignore_errors=True)
    assert not made.controller.conflicts
