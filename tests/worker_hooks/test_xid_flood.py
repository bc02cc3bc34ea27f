"""A flood of Xid lines becomes one event, and the second nine tenths of it take no more memory than the first.

200,000 lines; a million under `make campaign` (RELUME_FULL=1). Memory is compared within one run, nothing is timed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("programs") / "xid_flood.py"
LINES = 1_000_000 if os.environ.get("RELUME_FULL") == "1" else 200_000
# `lines` is a log read whole: one sign. The others read a log that grows: the first line comes at once.
EXPECTED = {"lines": [LINES], "pieces": [1, LINES - 1], "records": [1, LINES - 1]}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", sorted(EXPECTED))
def test_a_flood_is_one_event_in_flat_memory(way: str, tmp_path: Path) -> None:
    argv = [sys.executable, PROGRAM, way, str(LINES), str(tmp_path)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=800, check=True)
    told = json.loads(done.stdout)
    assert (told["codes"], told["counts"]) == (["xid.31"], EXPECTED[way])
    assert told["tenth_kb"] > 0
    # To keep 20 bytes of each line would show.
    assert told["peak_kb"] <= told["tenth_kb"] * 1.1
