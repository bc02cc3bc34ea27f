"""A real training job under the real controller on the real lab: what the tests of the whole ask and do."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo import training
from deploy.demo.controller import Controller
from deploy.lab.cluster import Lab

# The campaign waits as long as the promise says; `make test` waits long enough to see the same thing happen.
FULL = os.environ.get("RELUME_FULL") == "1"


@dataclass
class World:
    lab: Lab
    controller: Controller

    def __post_init__(self) -> None:
        self.token = self.controller.token(self.lab.users["owner"], "read")

    def submit(self, name: str, **plan: Any) -> training.Job:
        return training.submit(self.lab, self.controller.site, name, training.Plan(**plan))

    def detail(self, job: training.Job) -> dict[str, Any] | None:
        return self.controller.get(f"/api/v1/jobs/{job.run_id}", self.token)

    def until(
        self, job: training.Job, reached: Callable[[dict[str, Any]], Any], what: str, limit_s: float = 120
    ) -> dict[str, Any]:
        """The controller's answer once `reached` holds; fails with the job's log when it does not come."""
        end = time.monotonic() + limit_s
        last: dict[str, Any] | None = None
        while time.monotonic() < end:
            last = self.detail(job) or last
            if last is not None and reached(last):
                return last
            time.sleep(0.2)
        raise AssertionError(f"{what}: not within {limit_s} s\n{last}\n{job.log()[-3000:]}\n{self.controller.tail()}")

    def ask_database(self, code: str) -> str:
        """One expression over the controller's models, evaluated by the controller's own user."""
        names = "from controller.models import *; from django.db.models import *"
        return self.controller.manage("shell", "-c", f"{names}; print({code})").strip().splitlines()[-1]

    def processes(self, node: str, words: str) -> list[int]:
        """Processes of a node whose command line holds `words`."""
        found = []
        for pid in self.lab.pids(node):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words in line:
                found.append(pid)
        return found

    def signal_agents(self, node: str, number: signal.Signals) -> int:
        """Send a signal to the agent of a node (not to its ranks); how many there were."""
        agents = [pid for pid in self.processes(node, "worker_hooks run") if not self._is_srun(pid)]
        for pid in agents:
            os.kill(pid, number)
        return len(agents)

    @staticmethod
    def _is_srun(pid: int) -> bool:
        return Path(f"/proc/{pid}/comm").read_text().strip().startswith(("srun", "slurm"))


def committed(job: training.Job) -> list[str]:
    """Folders of the run that have a manifest, by name."""
    return sorted(path.parent.name for path in job.run_folder.glob("step-*/manifest.json"))
