"""Job logs into signs: the lines of the given cases, and variants of each kind from other versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.job_lines import one, read

pytestmark = pytest.mark.pure

GIVEN = json.loads((Path(__file__).parent / "golden" / "job_signs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("given", GIVEN, ids=[f"{i}-{given['case']}" for i, given in enumerate(GIVEN)])
def test_given_lines(given: dict[str, Any]) -> None:
    signs = read(*given["lines"], node=given["node"])
    found = [{"code": s.code, "node": s.node, "rank": s.rank, "attrs": dict(s.attrs)} for s in signs]
    assert found == given["signs"]
    assert all(s.raw and s.source == "job_log" for s in signs)


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


def test_a_broken_connection_is_not_the_programs_own_error() -> None:
    signs = read("[rank2]: ConnectionResetError: [Errno 104] Connection reset by peer")
    assert [s.code for s in signs] == ["connection.lost", "python.exception"]
    assert signs[1].attrs["repeats"] == "connection.lost"


def test_lines_that_run_through_each_other_keep_their_ranks() -> None:
    signs = read("[rank0]: Traceback", "[rank1]: KeyError: 'x'", "[rank0]: MemoryError", "[rank1]:   File")
    assert [(s.code, s.rank) for s in signs] == [
        ("python.exception", 1),
        ("host.out_of_memory", 0),
        ("python.exception", 0),
    ]
