"""Every test lane, one after the other, and one honest sum: what `make test` runs.

A lane that fails does not stop the others. A lane that runs no test, or skips one, has failed: a skipped test is not a
passing one. Arguments: names of lanes to run instead of all (`make test ARGS="pure torch"`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Lane:
    """`marks` is pytest's -m expression; `workers` 0 runs in one process. `dist` says how tests are dealt to workers:
    with `loadfile` a file's tests stay in one, which makes one lab for all of them."""

    name: str
    marks: str
    workers: int = 0
    dist: str = "load"
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: int = 1800


LANES = (
    Lane("pure", "pure", workers=2),
    Lane("sqlite", "db or scenario", workers=2, env={"RELUME_TEST_DATABASE": "sqlite"}),
    Lane("postgresql", "db", workers=2, env={"RELUME_TEST_DATABASE": "postgresql"}),
    # Ranks wait for each other and for a disk; who is done early takes tests of the other worker.
    Lane("torch", "torch", workers=2, dist="worksteal"),
    # Mostly waiting for Slurm: three labs side by side. The whole system trains for real and has the machine to itself.
    Lane("cluster", "cluster and not whole", workers=3, dist="loadfile", timeout_s=2700),
    Lane("whole", "whole"),
    Lane("browser", "browser"),
)
# Only by name: it reads recorded traces that lie beside the project and are no part of it.
BY_NAME = (Lane("data", "data", workers=2),)


@dataclass(frozen=True)
class Result:
    lane: str
    passed: int
    failed: int
    skipped: int
    ok: bool
    seconds: float


def run(lane: Lane, report: Path) -> Result:
    argv = [sys.executable, "-m", "pytest", "-q", "-m", lane.marks, f"--junitxml={report}", "tests"]
    if lane.workers:
        argv += ["-n", str(lane.workers), "--dist", lane.dist]
    started = time.monotonic()
    # A session of its own, so that a lane that takes too long ends with everything it started.
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        env=os.environ | lane.env,
        start_new_session=True,
        preexec_fn=_ordinary_signals,  # noqa: PLW1509  there are no threads here
    )
    try:
        rc = process.wait(lane.timeout_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        print(f"lane {lane.name}: ended after {time.monotonic() - started:.0f} s", flush=True)
        rc = _end(process)
    passed, failed, skipped = counts(report)
    ok = rc == 0 and passed > 0 and failed == 0 and skipped == 0
    return Result(lane.name, passed, failed, skipped, ok, time.monotonic() - started)


def _ordinary_signals() -> None:
    """Under nohup or behind `&` some signals are ignored, and would be by all that the tests start and signal."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Interrupted, so that fixtures tidy up; killed when that takes longer than a minute. Never a success."""
    for number, wait_s in ((signal.SIGINT, 60), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            break
    return 124


def counts(report: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) of a junit file; (0, 0, 0) when the run left none."""
    if not report.exists():
        return 0, 0, 0
    total = failed = skipped = 0
    for suite in ET.parse(report).getroot().iter("testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def main(names: list[str]) -> int:
    known = [lane.name for lane in (*LANES, *BY_NAME)]
    if unknown := set(names) - set(known):
        print(f"no such lane: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for lane in (*LANES, *BY_NAME):
            if lane.name in names or (not names and lane in LANES):
                print(f"\n=== lane {lane.name} ===", flush=True)
                results.append(run(lane, Path(folder) / f"{lane.name}.xml"))
    print()
    for r in results:
        word = "ok" if r.ok else "FAILED"
        print(
            f"{r.lane:<12}{r.passed:>6} passed {r.failed:>4} failed {r.skipped:>4} skipped {r.seconds:>7.0f} s  {word}"
        )
    passed, failed, skipped = (sum(getattr(r, k) for r in results) for k in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
