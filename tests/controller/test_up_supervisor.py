"""The supervisor with small children: ever longer pauses, a bounded stop, nobody left behind.

It runs in a process of its own, because it takes over signals and orphans.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller.environment import ROOT
from tests.controller.up_process import processes

pytestmark = pytest.mark.db

HEAD = """
import os, signal, sys
from pathlib import Path
from controller.up import supervisor as module
from controller.up.accounts import choose
from controller.up.children import Spec

module.STOP_LIMIT_S = 1.0
account = choose("", "").worker
supervisor = module.Supervisor(lambda text: print(text, flush=True))

def spec(name, code):
    return Spec(name, [sys.executable, "-c", code], account, dict(os.environ), Path("/"))

supervisor.begin()
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_that_dies_at_once_is_started_ever_less_often() -> None:
    out = run(
        """
now = [1000.0]
supervisor.monotonic = lambda: now[0]
supervisor.add(spec("moth", "raise SystemExit(3)"))
child, starts = supervisor.children[0], 1
while starts < 9:
    while child.pid is not None:
        supervisor.turn(0.05)
    now[0] = child.due_at
    supervisor.turn(0.0)
    starts += 1
now[0] += 31.0
while child.pid is not None:
    supervisor.turn(0.05)
"""
    )
    assert "ended with exit code 3" in out
    pauses = [float(text) for text in re.findall(r"in ([0-9.]+) s", out)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 0.5]  # the last one had run steadily


def test_a_child_that_does_not_stop_is_killed_with_all_it_started(tmp_path: Path) -> None:
    stubborn = f"""
import signal, subprocess, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
brood = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
Path({str(tmp_path / "pids")!r}).write_text(f"{{brood.pid}} {{__import__('os').getpid()}}")
time.sleep(600)
"""
    out = run(
        f"""
supervisor.add(spec("mule", {stubborn!r}))
pids = Path({str(tmp_path / "pids")!r})
assert supervisor.wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, 30)
supervisor.stop()
"""
    )
    assert re.search(r"mule \(pid \d+\) did not stop in 1 s and is killed", out)
    left = {int(pid) for pid in (tmp_path / "pids").read_text().split()} & set(processes())
    assert not left and os.getpid() in processes()
