"""The kill walk: SIGKILL after each committed write and after each Slurm write of an incident. Whatever the moment,
after the restart there is exactly one hold and one requeue, in Slurm and in the database, and one reservation of the
survivors, which is gone again.

`make test` walks a seeded subset; RELUME_FULL=1 walks every moment.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.scenario

ROOT = Path(__file__).parents[2]
SEED, SUBSET = 20261, 9
# What one undisturbed incident does to Slurm. DOWN makes Slurm requeue by itself; on a living host we do.
EXPECTED = {
    "dead": {"drain gpu2": 1, "reserve": 1, "down gpu2": 1, "unreserve": 1},
    "living": {"drain gpu2": 1, "reserve": 1, "requeuehold 1": 1, "unreserve": 1},
    # Somebody waits for three nodes: the job starts in the reservation, and is set free of it.
    "rival": {"drain gpu2": 1, "reserve": 1, "down gpu2": 1, "set_reservation 1": 1, "free 1": 1, "unreserve": 1},
}
# These may be repeated: what counts is that they were made, and what is left at the end.
REPEATABLE = ("set_reservation", "free")
COUNTED = {what.split()[0] for variant in EXPECTED.values() for what in variant}
ACTIONS = [["give_back", "done"], ["hold_node", "done"], ["notify", "done"], ["requeue_excluding", "done"]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where possible: what SIGKILL leaves is what the kernel has, and no disk has to be waited for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="relume-walk-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def drive(folder: Path, variant: str, wanted: str) -> list[dict[str, Any]]:
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": f"sqlite:///{folder}/unused.sqlite3",
        "DJANGO_SETTINGS_MODULE": "controller.settings",
    }
    argv = [sys.executable, "-m", "tests.controller.kill_walk_driver", str(folder), variant, wanted]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"moment"')]


def exactly_once(report: dict[str, Any], variant: str) -> None:
    where = f"moment {report['moment']}: {report}"
    # A reservation has a name of its own in each walk.
    counts = Counter(effect.partition(" relume-")[0] for effect in report["effects"])
    once = {kind: 1 if kind.startswith(REPEATABLE) else n for kind, n in counts.items()}
    assert {kind: n for kind, n in once.items() if kind.split()[0] in COUNTED} == EXPECTED[variant], where
    assert report["reservations"] == [], where
    assert counts.keys().isdisjoint({"requeue 1", "cancel 1", "resume gpu2"}), where
    base, restarts, held, excluded, nodes = report["job"]
    assert (base, restarts, held, excluded) == ("RUNNING", 1, "", ["gpu2"]), where
    assert "gpu2" not in nodes, where
    assert report["incidents"] == ["recovering"] and len(report["holds"]) == 1, where
    assert report["actions"] == ACTIONS, where


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", list(EXPECTED))
def test_one_hold_and_one_requeue_whenever_the_controller_is_killed(folder: Path, variant: str) -> None:
    (whole,) = drive(folder / "count", variant, "COUNT")
    exactly_once(whole, variant)
    names = whole["moments"]
    slurm = [number for number, name in enumerate(names, start=1) if name.startswith("slurm ")]
    assert len(slurm) >= 5 and len(names) >= 30, names
    chosen = list(range(1, len(names) + 1))
    if os.environ.get("RELUME_FULL") != "1":
        chosen = sorted({*slurm, *random.Random(SEED).sample(chosen, SUBSET)})
    reports = drive(folder / "walk", variant, ",".join(map(str, chosen)))
    assert [report["moment"] for report in reports] == chosen
    for report in reports:
        assert report["killed"], f"moment {report['moment']}: the first process was to be killed"
        assert report["second"] == 0, f"moment {report['moment']}: the second process failed"
        exactly_once(report, variant)
