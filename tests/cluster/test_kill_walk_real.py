"""The kill walk on a real Slurm: SIGKILL right after a write of an incident, then a successor.

`make test` walks the writes after which the most could go wrong; RELUME_FULL=1 walks all.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.lab.cluster import Lab

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
WRITES = ("drain", "reserve", "down", "hold", "exclude", "delete", "start now", "release")
CHOSEN = WRITES if os.environ.get("RELUME_FULL") == "1" else ("reserve", "down", "exclude", "delete", "release")
ACTIONS = [["give_back", "done"], ["hold_node", "done"], ["notify", "done"], ["requeue_excluding", "done"]]


def drive(lab: Lab, folder: Path, part: str, moment: int) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": f"sqlite:///{folder}/db.sqlite3",
        "DJANGO_SETTINGS_MODULE": "controller.settings",
    }
    argv = [sys.executable, "-m", "tests.cluster.kill_walk_lab_driver", str(lab.dir), part, str(moment)]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("write", CHOSEN)
def test_killed_after_a_write(lab: Lab, tmp_path: Path, write: str) -> None:
    first = drive(lab, tmp_path, "start", WRITES.index(write) + 1)
    assert first.returncode == -signal.SIGKILL, first.stdout[-2000:] + first.stderr[-2000:]
    second = drive(lab, tmp_path, "go_on", 0)
    assert second.returncode == 0, second.stdout[-2000:] + second.stderr[-2000:]
    looked = drive(lab, tmp_path, "look", 0)
    assert looked.returncode == 0, looked.stderr[-2000:]
    found = json.loads(looked.stdout.splitlines()[-1])
    assert found["incidents"] == ["recovering"]
    assert found["actions"] == ACTIONS and found["reservations"] == []
    ((token, adopted),) = found["holds"]
    drain, down, reason = found["node"]
    assert (adopted, drain, down) == (False, True, True) and reason.startswith(f"relume:{token} ")
    base, restarts, held, excluded, nodes = found["job"]
    assert (base, restarts, held, excluded) == ("RUNNING", 1, "None", ["gpu2"])
    assert "gpu2" not in nodes
