"""Real processes: time-outs end the whole group, output is bounded, the environment is ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from controller.slurm.runner import Runner, slurm_env

pytestmark = pytest.mark.pure


def gone(pid: int) -> bool:
    """No such process, or one that is dead and only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_output_errors_and_code() -> None:
    done = Runner().run(["sh", "-c", "echo out; echo err >&2; exit 3"], 10)
    assert (done.rc, done.out, done.err, done.timed_out, done.truncated) == (3, "out\n", "err\n", False, False)


def test_a_timeout_kills_children_and_grandchildren(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 600 & echo $! >{pids}; echo begun; echo $$ >>{pids}; sleep 600"
    done = Runner().run(["sh", "-c", script], 1.0)
    assert done.rc is None and done.timed_out and done.out == "begun\n"
    child, shell = map(int, pids.read_text().split())
    for _ in range(100):
        if gone(child) and gone(shell):
            return
        time.sleep(0.05)
    raise AssertionError("the group lives on")


def test_a_child_that_keeps_the_pipe_does_not_keep_us(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    done = Runner().run(["sh", "-c", f"sleep 600 & echo $! >{pids}; echo done"], 1.0)
    assert done.timed_out and done.out == "done\n"
    assert any(gone(int(pids.read_text())) or time.sleep(0.05) for _ in range(100))


def test_huge_output_is_cut_and_said_to_be() -> None:
    done = Runner(max_output=100_000).run(["sh", "-c", "yes"], 30)
    assert done.rc is None and done.truncated and not done.timed_out and len(done.out) == 100_000


def test_output_just_below_the_bound_is_whole() -> None:
    done = Runner(max_output=100_000).run(["sh", "-c", "head -c 99999 /dev/zero"], 30)
    assert done.rc == 0 and len(done.out) == 99_999 and not done.truncated


def test_bytes_that_are_no_text_do_not_raise() -> None:
    assert Runner().run(["printf", r"\377x"], 10).out == "�x"


def test_nothing_is_read_by_a_shell(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = Runner().run(["echo", f"$(touch {mark}); touch {mark}"], 10)
    assert done.out.startswith("$(touch") and not mark.exists()


def test_standard_input_is_empty() -> None:
    assert Runner().run(["cat"], 10).rc == 0


def test_what_cannot_be_started_raises() -> None:
    with pytest.raises(OSError):
        Runner().run(["/nonexistent/scontrol"], 10)


def test_only_our_settings_reach_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i %j")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    seen = Runner(env=slurm_env(os.environ, "/etc/our.conf")).run(["env"], 10).out.splitlines()
    assert {"LC_ALL=C", "SLURM_TIME_FORMAT=%s", "SLURM_CONF=/etc/our.conf"} <= set(seen)
    assert not [line for line in seen if line.startswith(("SQUEUE_", "SLURM_JOB"))]


def test_a_prefix_that_drops_the_environment_is_made_up_for() -> None:
    runner = Runner(env=slurm_env(os.environ, "/etc/our.conf"), run_as=("env", "-i", "PATH=/usr/bin:/bin"))
    seen = set(runner.run(["env"], 10).out.splitlines())
    assert {"LC_ALL=C", "SLURM_TIME_FORMAT=%s", "SLURM_CONF=/etc/our.conf"} <= seen
