"""Job logs into signs: torchrun's tables of failures, and why Slurm ended a job or a step."""

from typing import Any

import pytest

from tests.worker_hooks.job_lines import read
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

TABLE = """Failures:
[1]:
  time      : 2026-06-08_19:04:46
  host      : gn02.cluster.org
  rank      : 10 (local_rank: 2)
  exitcode  : -15 (pid: 102932)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 102932
Root Cause (first observed failure):
[0]:
  time      : 2026-06-08_19:04:45
  host      : gn02.cluster.org
  rank      : 8 (local_rank: 0)
  exitcode  : 1 (pid: 102930)
  error_file: /tmp/e/error.json
  traceback : To enable traceback see: https://pytorch.org""".splitlines()


def tables(signs: list[Sign]) -> list[tuple[Any, ...]]:
    rows = [s for s in signs if s.code == "torchrun.failure"]
    return [(s.rank, s.node, s.attrs["exit_code"], s.attrs["first"], s.attrs["table"]) for s in rows]


def test_tables_of_failures() -> None:
    assert tables(read(*TABLE)) == [(10, "gn02", -15, False, 1), (8, "gn02", 1, True, 1)]
    assert [t[-1] for t in tables(read(*TABLE, *TABLE))] == [1, 1, 2, 2]
    assert [s.at for s in read(*TABLE)] == [1780945486.0, 1780945485.0]


def test_tables_that_run_through_each_other() -> None:
    mixed = [f"{node}: {line}" for line in TABLE for node in ("gn07", "gn08")]
    assert sorted(t[0] for t in tables(read(*mixed))) == [8, 8, 10, 10]


@pytest.mark.parametrize("kept", range(5, len(TABLE)))
def test_a_table_cut_short_gives_what_it_holds(kept: int) -> None:
    found = [s for s in read(*TABLE[:kept]) if s.code == "torchrun.failure"]
    assert found and found[0].rank in (10, None)


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("", "slurm.cancelled"),
        (" DUE TO TIME LIMIT", "slurm.time_limit"),
        (" DUE TO PREEMPTION", "slurm.preempted"),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "slurm.node_failure"),
        (" DUE TO JOB REQUEUE", "slurm.requeued"),
        (" DUE to SIGNAL Terminated", "slurm.cancelled"),
        (" DUE TO TASK FAILURE", "slurm.cancelled_by_node"),
    ],
)
@pytest.mark.parametrize("what", ["JOB 8801", "STEP 8801.0", "STEP 8801.0+1", "STEP 8801.batch"])
@pytest.mark.parametrize(
    "front", ["slurmstepd: error: ", "slurmstepd-gn01: error: ", "error: ", "0: slurmstepd: error: "]
)
def test_every_reason_of_slurm(front: str, what: str, why: str, code: str) -> None:
    (sign,) = read(f"{front}*** {what} ON gn01 CANCELLED AT 2026-03-05T03:12:44{why} ***")
    assert (sign.code, sign.node, sign.at) == (code, "gn01", 1772680364.0)
    assert sign.attrs["id"] == what.split()[1] and "truncated" not in sign.attrs


def test_a_step_that_slurm_calls_failed_was_ended_by_a_task() -> None:
    (sign,) = read("slurmstepd: error: *** STEP 1.0 ON gn1 FAILED (non-zero exit code or other failure mode) ***")
    assert (sign.code, sign.node) == ("slurm.cancelled_by_node", "gn1")
    (sign,) = read("slurmstepd: error: *** JOB 1 ON gn1 UNCORRECTABLE MEMORY ERROR AT 2026-03-05T03:12:44 ***")
    assert (sign.code, sign.node, sign.at) == ("memory.uncorrected", "gn1", 1772680364.0)


def test_a_cut_reason_is_marked() -> None:
    (sign,) = read("slurmstepd: error: *** JOB 8801 ON gn01 CANCELLED AT 2026-03-05T03:12:44 DUE ")
    assert sign.code == "slurm.cancelled" and sign.attrs["truncated"] is True
