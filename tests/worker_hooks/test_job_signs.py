"""Job logs into signs: the lines of the given cases, and variants of each kind from other versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.signs.log import read_lines
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

GIVEN = json.loads((Path(__file__).parent / "golden" / "job_signs.json").read_text(encoding="utf-8"))


def read(*lines: str, **where: Any) -> list[Sign]:
    return read_lines("job", lines, **where)


def one(line: str, code: str) -> Sign:
    signs = [sign for sign in read(line) if sign.code == code]
    assert len(signs) == 1, (code, read(line))
    return signs[0]


@pytest.mark.parametrize("given", GIVEN, ids=[f"{i}-{given['case']}" for i, given in enumerate(GIVEN)])
def test_given_lines(given: dict[str, Any]) -> None:
    signs = read(*given["lines"], node=given["node"])
    found = [{"code": s.code, "node": s.node, "rank": s.rank, "attrs": dict(s.attrs)} for s in signs]
    assert found == given["signs"]
    assert all(s.raw and s.source == "job_log" for s in signs)


COMPLETIONS = [
    (
        "NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)",
        "10.2.0.5",
        12,
        129,
    ),
    (
        "NET/IB: Got completion from peer gn12<51161> with status=4 opcode=32614 len=1 vendor "
        "err 81 (Send) localGid ::ffff:1.9.2.9 remoteGids::ffff:1.9.1.3 hca mlx5_1",
        "gn12",
        4,
        81,
    ),
    (
        "NET/IB: Got completion from peer fe80::a:1%ib0<44310> with status=12 opcode=1 len=0 vendor err 129 (Send)",
        "fe80::a:1",
        12,
        129,
    ),
    (
        "NET/IB: Got completion from peer 10.1.2.13<40554> with status=IBV_WC_RETRY_EXC_ERR(12) "
        "opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 hca mlx5_1",
        "10.1.2.13",
        12,
        129,
    ),
    ("NET/IB : Got completion with error 12, opcode 1, len 32631, vendor err 129", None, 12, 129),
    ("NET/IB : Got completion from peer 10.2.0.5<33092> with status=12 opco", "10.2.0.5", 12, None),
    (
        "NET/IB/GIN: Got completion from peer 10.2.0.5<1> with status=10 opcode=3 len=4 vendor "
        "err 136 (Put) hca mlx5_0",
        "10.2.0.5",
        10,
        136,
    ),
]


@pytest.mark.parametrize(("text", "peer", "status", "vendor"), COMPLETIONS)
@pytest.mark.parametrize(
    "front", ["gn07:41:43 [3] net_ib.cc:12 NCCL WARN ", "[2026-03-03 12:11:38] gn07:41:43 [3] p2p.cc:6 NCCL WARN ", ""]
)
def test_completions_of_every_spelling(
    front: str, text: str, peer: str | None, status: int, vendor: int | None
) -> None:
    sign = one(front + text, "nccl.ib_completion")
    assert (sign.attrs.get("peer"), sign.attrs["status"], sign.attrs.get("vendor_error")) == (peer, status, vendor)
    assert sign.node == ("gn07" if front else None)


@pytest.mark.parametrize(
    ("line", "code", "attrs"),
    [
        (
            "gn1:2:3 [0] NCCL WARN socketProgress: Connection closed by remote peer gn12.c<40112>",
            "nccl.peer_closed",
            {"peer": "gn12.c"},
        ),
        (
            "gn1:2:3 [0] NCCL WARN Net : Call to recv from 10.0.0.1<54321> failed : Connection reset by peer",
            "nccl.socket_error",
            {"peer": "10.0.0.1", "errno": 104},
        ),
        (
            "gn1:2:3 [0] NCCL WARN socketPollConnect: Connect to 10.0.0.1<5> returned 113(No route "
            "to host) errno 115(Operation now in progress)",
            "nccl.socket_error",
            {"peer": "10.0.0.1", "errno": 113},
        ),
        (
            "gn1:2:3 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
            "nccl.ib_async_event",
            {"device": "mlx5_0:1", "event": "port error"},
        ),
        (
            "gn1:2:3 [0] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
            "nccl.ib_qp_timeout",
            {"errno": 110},
        ),
        ("gn1:2:3 [0] NCCL WARN Cuda failure 'out of memory'", "cuda.out_of_memory", {}),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, "
            "unhandled system error, NCCL version 2.18.1",
            "nccl.system_error",
            {},
        ),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "nccl.remote_error",
            {},
        ),
        (
            "[rank3]: RuntimeError: [/w/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection "
            "closed by peer [fe80::5]:1234",
            "gloo.peer_lost",
            {"kind": "closed", "peer": "fe80::5"},
        ),
        (
            "RuntimeError: [unbound_buffer.cc:81] gloo: Timed out waiting 1800000ms for recv operation to complete",
            "gloo.timeout",
            {"timeout_ms": 1800000},
        ),
        (
            "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms",
            "gloo.timeout",
            {"missing": "1,3", "timeout_ms": 30000},
        ),
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "cuda.unavailable",
            {"number": 46},
        ),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 39.59 GiB total "
            "capacity; 37 GiB already allocated)",
            "cuda.out_of_memory",
            {"gpu": 3},
        ),
        ("RuntimeError: No CUDA GPUs are available", "cuda.no_device", {}),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host.out_of_memory", {}),
        ("OSError: [Errno 24] Too many open files: '/data/x'", "limit.open_files", {}),
        ("OSError: [Errno 122] Disk quota exceeded", "storage.quota", {"errno": 122}),
        (
            "OSError: [Errno 110] Connection timed out: '/lustre/a'",
            "storage.unreachable",
            {"errno": 110, "path": "/lustre/a"},
        ),
        ("RuntimeError: unable to write to file </torch_4121_1_0>: No space left on device (28)", "shm.exhausted", {}),
        ("OSError: [Errno 98] Address already in use", "port.in_use", {}),
        (
            "[launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = -9",
            "process.exit",
            {"exit_code": -9, "signal": 9},
        ),
        (
            "/var/spool/slurmd/job7/slurm_script: line 22: 8123 Segmentation fault      (core dumped) python t.py",
            "process.exit",
            {"signal": 11, "pid": 8123},
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
            "process.exit",
            {"local_rank": 2, "signal": 9},
        ),
        (
            "W0304 09:00:09.000 12 torch/x/api.py:908] Sending process 8812 closing signal SIGTERM",
            "torchrun.closing",
            {"pid": 8812, "signal": 15},
        ),
        (
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15",
            "signal.received",
            {"signal": 15},
        ),
        (
            "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=77.0 cgroup. Some of your "
            "processes may have been killed by the cgroup out-of-memory handler.",
            "slurm.oom",
            {"events": 2, "id": "77.0"},
        ),
        (
            "srun: error: gn[21-22]: tasks 0,2-3: Killed",
            "slurm.task_exit",
            {"host": "gn[21-22]", "tasks": "0,2-3", "signal": 9},
        ),
        ("srun: error: gn04: task 3: Bus error (core dumped)", "slurm.task_exit", {"signal": 7, "core_dumped": True}),
        ("srun: error: gn04: task 3: Out Of Memory", "slurm.oom", {"host": "gn04"}),
        (
            "srun: error: Task launch for StepId=41.0 failed on node cn31: Job credential revoked",
            "slurm.launch_failed",
            {"host": "cn31", "text": "Job credential revoked"},
        ),
        ("srun: error: Node failure on gn04", "slurm.node_lost", {"host": "gn04"}),
        ("srun: Force Terminated StepId=12.0", "slurm.aborted", {}),
        ("Training completed. Do not forget to share your model on huggingface.co/models =)", "trainer.finished", {}),
        ("[after training is done] datetime: 2026-01-01 00:00:00", "trainer.finished", {}),
        ("step 910 loss=nan", "loss.not_finite", {"step": 910}),
        (
            " iteration     5000/ 1000000 | elapsed time per iteration (ms): 1234.5 | lm loss: "
            "2.345E+00 | grad norm: 0.3 |",
            "progress.step",
            {"step": 5000, "loss": 2.345, "seconds": 1.2345},
        ),
        ("{'loss': 2.31, 'learning_rate': 1e-05, 'epoch': 0.1}", "progress.step", {"loss": 2.31}),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
            "collective: X, but Rank 1 is running collective: Y.",
            "collective.mismatch",
            {"kind": "calls"},
        ),
    ],
)
def test_other_versions_and_spellings(line: str, code: str, attrs: dict[str, Any]) -> None:
    found = one(line, code).attrs
    assert {name: found.get(name) for name in attrs} == attrs


@pytest.mark.parametrize(
    ("line", "attrs", "rank"),
    [
        (
            "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, TensorShape=[2, 3], Timeout(ms)=1800000) ran for "
            "1800750 milliseconds before timing out.",
            {"sequence": 3, "numel_in": 6},
            1,
        ),
        (
            "[rank9]:[E1229 20:29:13.091 ProcessGroupNCCL.cpp:632] [PG ID 2 PG GUID 7(tp) Rank 1] "
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
            "OpType=_REDUCE_SCATTER_BASE, NumelIn=8, NumelOut=1, Timeout(ms)=600000) ran for 600001 "
            "milliseconds before timing out.",
            {"group": "7", "group_name": "tp", "op": "_REDUCE_SCATTER_BASE"},
            9,
        ),
    ],
)
def test_collective_timeouts(line: str, attrs: dict[str, Any], rank: int) -> None:
    """The rank in front counts in the job, the one in brackets in its group."""
    sign = one(line, "nccl.watchdog_timeout")
    assert {name: sign.attrs.get(name) for name in attrs} == attrs and sign.rank == rank


def test_sequence_numbers_that_are_not_there_yet() -> None:
    line = (
        "[PG 0 Rank 2] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL "
        "work: 18446744073709551615."
    )
    assert one(line, "nccl.watchdog_status").attrs["completed"] == -1
    old = (
        "[rank1]:[E1229 20:29:13.091 ProcessGroupNCCL.cpp:2] [PG ID 0 PG GUID 0(default_pg) Rank "
        "1]  failure detected by watchdog at work sequence id: 2 PG status: last enqueued work: "
        "2, last completed work: 1"
    )
    assert dict(one(old, "nccl.watchdog_status").attrs) == {
        "work": 2,
        "enqueued": 2,
        "completed": 1,
        "group": "0",
        "group_name": "default_pg",
    }


def test_an_exception_says_what_it_repeats() -> None:
    own, told = read("[rank1]: ValueError: bad label"), read("[rank1]: RuntimeError: CUDA error: misaligned address")
    assert [s.code for s in own] == ["python.exception"] and "repeats" not in own[0].attrs
    assert [s.code for s in told] == ["cuda.misaligned", "python.exception"] and told[1].attrs[
        "repeats"
    ] == "cuda.misaligned"
    assert {s.rank for s in own + told} == {1}


@pytest.mark.parametrize(
    "line",
    [
        "x.py:3: UserWarning: a ValueError was raised",
        '    raise ValueError("bad")',
        "no error at all",
        '  File "a.py", line 3, in error',
    ],
)
def test_what_is_no_exception(line: str) -> None:
    assert read(line) == []


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


def test_a_broken_connection_is_not_the_programs_own_error() -> None:
    signs = read("[rank2]: ConnectionResetError: [Errno 104] Connection reset by peer")
    assert [s.code for s in signs] == ["connection.lost", "python.exception"]
    assert signs[1].attrs["repeats"] == "connection.lost"


def test_a_cut_reason_is_marked() -> None:
    (sign,) = read("slurmstepd: error: *** JOB 8801 ON gn01 CANCELLED AT 2026-03-05T03:12:44 DUE ")
    assert sign.code == "slurm.cancelled" and sign.attrs["truncated"] is True


def test_culprits_of_a_mismatch_each_have_a_sign() -> None:
    line = (
        "error msg: Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH, Expected a, Culprit "
        "rank 5; Error type: UNDECIDED"
    )
    assert [(s.rank, s.attrs["kind"]) for s in read(line)] == [(3, "collective_type_mismatch"), (5, "undecided")]
    assert [s.rank for s in read("missing ranks: {4, 6}")] == [4, 6]


def test_lines_that_run_through_each_other_keep_their_ranks() -> None:
    signs = read("[rank0]: Traceback", "[rank1]: KeyError: 'x'", "[rank0]: MemoryError", "[rank1]:   File")
    assert [(s.code, s.rank) for s in signs] == [
        ("python.exception", 1),
        ("host.out_of_memory", 0),
        ("python.exception", 0),
    ]
