"""Job logs into signs: what NCCL says of completions, time-outs, sequence numbers and calls that do not match."""

from typing import Any

import pytest

from tests.worker_hooks.job_lines import one, read

pytestmark = pytest.mark.pure

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


def test_culprits_of_a_mismatch_each_have_a_sign() -> None:
    line = (
        "error msg: Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH, Expected a, Culprit "
        "rank 5; Error type: UNDECIDED"
    )
    assert [(s.rank, s.attrs["kind"]) for s in read(line)] == [(3, "collective_type_mismatch"), (5, "undecided")]
    assert [s.rank for s in read("missing ranks: {4, 6}")] == [4, 6]
