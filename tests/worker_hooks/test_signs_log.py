# ruff: noqa: E501 (log lines stay whole)
"""The engine: prefixes, times, bursts, hostile input, and that it does not matter how a log is cut into pieces."""

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_hooks.signs.log import LogReader, read_lines
from worker_hooks.signs.prefixes import Prefixes
from worker_hooks.signs.reading import sign_of
from worker_hooks.signs.recogniser import Line
from worker_hooks.signs.scan import Scanner
from worker_hooks.signs.sign import RAW_CHARS, Sign
from worker_hooks.signs.times import Clock, dated

pytestmark = pytest.mark.pure

XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
MARCH_5 = 1772676700.0  # 2026-03-05 02:11:40 UTC


def line_of(raw: str, kind: str = "job", at: float | None = None, **known: object) -> Line:
    hosts = frozenset(known.pop("hosts", ()))  # type: ignore[call-overload]
    clock = Clock(2026, known.pop("booted_at", None), known.pop("utc_offset_s", 0.0))  # type: ignore[arg-type]
    return Prefixes(kind, "job_log", clock, None, None, hosts).line(raw, 1, at)


@pytest.mark.parametrize(
    ("raw", "text", "node", "rank", "local_rank"),
    [
        ("[rank9]: RuntimeError: x", "RuntimeError: x", None, 9, None),
        ("3: RuntimeError: x", "RuntimeError: x", None, 3, None),
        ("gn53: RuntimeError: x", "RuntimeError: x", "gn53", None, None),
        ("gn53: 3: [rank9]: RuntimeError: x", "RuntimeError: x", "gn53", 9, None),
        ("1: [default7]:RuntimeError: x", "RuntimeError: x", None, None, 7),
        ("[1,3]<stderr>:RuntimeError: x", "RuntimeError: x", None, 3, None),
        ("08:00:02 gn02 [rank13]: torch.OutOfMemoryError: x", "torch.OutOfMemoryError: x", "gn02", 13, None),
        ("08:30:03 gn01 [Rank 2] Watchdog caught", "Watchdog caught", "gn01", 2, None),
        ("07:06:30 [rank0] RuntimeError: x", "RuntimeError: x", None, 0, None),
        ("(RayTrainWorker pid=123, ip=10.0.0.1) [rank3]: x failed", "x failed", None, 3, None),
        ("2026-03-05T02:11:40.123456789Z stderr F [rank3]: x failed", "x failed", None, 3, None),
        ("gn07:4120:4388 [3] ib.c:1 NCCL WARN x", "gn07:4120:4388 [3] ib.c:1 NCCL WARN x", "gn07", None, 3),
        ("5: gn07:4120:4388 [3] NCCL INFO x", "gn07:4120:4388 [3] NCCL INFO x", "gn07", None, 3),
        ("step 12: loss 3", "step 12: loss 3", None, None, None),
        ("python3: can't open file", "python3: can't open file", None, None, None),
        ("slurmstepd-gn01: error: x", "slurmstepd-gn01: error: x", None, None, None),
        ("mlx5_0: error", "mlx5_0: error", None, None, None),
    ],
)
def test_prefixes_of_a_job_log(raw: str, text: str, node: str | None, rank: int | None, local_rank: int | None) -> None:
    line = line_of(raw)
    assert (line.text, line.node, line.rank, line.local_rank) == (text, node, rank, local_rank)
    assert line.raw == raw


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-03-05T02:11:40Z",
        "2026-03-05T03:11:40,000000+01:00",
        "2026-03-05 02:11:40,000",
        "[2026-03-05 02:11:40,000]",
        "2026/03/05 02:11:40",
        "[Thu Mar  5 02:11:40 2026]",
        "Mar 05 02:11:40",
        "Mar  5 02:11:40",
        "Thu 2026-03-05 02:11:40 UTC",
        "1772676700.000000",
        "E0305 02:11:40.000000 4120 api.py:869]",
        "[E305 02:11:40.000000000 ProcessGroupNCCL.cpp:1664]",
        "[rank3]:[E305 02:11:40.000000000 ProcessGroupNCCL.cpp:1664]",
    ],
)
def test_one_moment_in_every_spelling(stamp: str) -> None:
    line = line_of(f"{stamp} something failed")
    assert line.at == pytest.approx(MARCH_5)
    assert line.text == "something failed"


def test_times_that_need_to_be_told_something() -> None:
    assert line_of("[ 2210.5] x", kind="kernel").at is None
    assert line_of("[ 2210.5] x", kind="kernel", booted_at=1000.0).at == 3210.5
    assert line_of("4,17,2210500000,-;x", kind="kernel", booted_at=1000.0).at == 3210.5
    assert line_of("2026-03-05 02:11:40 x", utc_offset_s=3600.0).at == MARCH_5 - 3600
    assert line_of("23:59:59 x", at=MARCH_5).at == MARCH_5 - 2 * 3600 - 11 * 60 - 41  # of the evening before
    assert line_of("no time", at=MARCH_5).at == MARCH_5
    alone = line_of("08:00:02 x").at
    assert alone is not None
    assert not dated(alone)


def test_a_clock_goes_on_past_midnight() -> None:
    lines = [f"{clock} {XID}" for clock in ("23:59:50", "00:01:55", "00:01:54")]
    first, second = read_lines("job", lines)
    assert (first.at, second.at, second.last_at) == (86390.0, 86400.0 + 114, 86400.0 + 115)


def test_a_kernel_log_belongs_to_the_node_that_it_was_read_on() -> None:
    line = f"Mar 05 02:11:40 ip-10-0-3-7 kernel: {XID}"
    assert [sign.node for sign in read_lines("kernel", [line], node="gn31")] == ["gn31"]
    assert [sign.node for sign in read_lines("kernel", [line], node="gn31", hosts=["ip-10-0-3-7"])] == ["ip-10-0-3-7"]
    assert [sign.node for sign in read_lines("kernel", [line])] == ["ip-10-0-3-7"]


def test_the_first_of_a_burst_comes_at_once_and_the_rest_when_the_window_is_over() -> None:
    reader = LogReader("kernel", node="gn1")
    line = (XID + "\n").encode()
    assert [sign.count for sign in reader.feed(line, 100.0)] == [1]
    assert reader.feed(line * 5, 110.0) == []
    assert reader.feed(b"", 150.0) == []
    (rest,) = reader.feed(b"", 170.0)
    assert (rest.count, rest.at, rest.last_at) == (5, 110.0, 110.0)
    assert reader.close() == []


def test_other_devices_and_other_codes_are_other_events() -> None:
    lines = [XID, XID.replace("9b", "1b"), XID.replace("79", "48"), XID]
    assert sorted((sign.code, sign.attrs["pci"], sign.count) for sign in read_lines("kernel", lines)) == [
        ("xid.48", "0000:9b:00", 1),
        ("xid.79", "0000:1b:00", 1),
        ("xid.79", "0000:9b:00", 2),
    ]


def test_a_flood_of_ever_new_xids_is_a_handful_of_signs_in_a_little_memory() -> None:
    reader = LogReader("kernel", node="gn1")
    block = "".join(
        f"[{n}.5] NVRM: Xid (PCI:0000:{n % 256:02x}:00): {n % 200}, pid={n}, name=p{n}, x\n" for n in range(2000)
    )
    signs: list[Sign] = []
    tracemalloc.start()
    for _ in range(10):  # 20 000 lines
        signs += reader.feed(block.encode())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    signs += reader.close()
    assert len(signs) < 200
    assert sum(sign.count for sign in signs) == 20_000
    assert peak < 20_000_000


def test_a_line_of_ten_megabytes_costs_bounded_memory_and_not_the_rest_of_the_log() -> None:
    reader = LogReader("kernel", node="gn1")
    tracemalloc.start()
    for _ in range(160):
        assert reader.feed(b"x" * 65536) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert [sign.code for sign in reader.feed(b"\n" + XID.encode() + b"\n")] == ["xid.79"]


def test_what_is_in_a_sign_is_clean_and_cut() -> None:
    dirty = b"\0\0\x1b[31mNVRM: Xid (PCI:0000:9b:00): 79, \xff\xfe" + b"y" * 9000 + b"\x1b[0m\n"
    (sign,) = LogReader("kernel", node="gn1").feed(dirty)
    assert len(sign.raw) == RAW_CHARS
    assert sign.raw.startswith("NVRM: Xid (PCI:0000:9b:00): 79, ��yyy")


def test_a_progress_bar_is_many_lines() -> None:
    (sign,) = LogReader("job").feed(b" 10%|# | 1/10\r 20%|## | 2/10\r[rank3]: " + XID.encode() + b"\r\n")[-1:]
    assert (sign.code, sign.rank, sign.raw) == ("xid.79", 3, "[rank3]: " + XID)


class Fails:
    triggers: tuple[bytes, ...] = (b"Xid",)

    def read(self, line: Line) -> list[Sign]:
        raise ValueError(line.text)

    def close(self) -> list[Sign]:
        return []


def test_a_recogniser_that_fails_costs_its_own_sign_only() -> None:
    reader = LogReader("kernel", extra=[Fails()])
    assert [sign.code for sign in reader.feed(XID.encode() + b"\n")] == ["xid.79"]
    assert reader.failures == {"Fails": 1}


class Numbers:
    """The number of each line that holds `mark` or, a sample of them, `often`."""

    triggers: tuple[bytes, ...] = (b"mark",)
    frequent = (b"often",)

    def __init__(self) -> None:
        self.seen: list[int] = []

    def read(self, line: Line) -> list[Sign]:
        self.seen.append(line.number)
        return [
            sign_of(
                line, "python.exception", {"text": f"{line.number} {line.text}", "type": chr(line.number % 100 + 64)}
            )
        ]

    def close(self) -> list[Sign]:
        return []


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def signs_of(kind: str, parts: Iterable[bytes]) -> list[Sign]:
    reader = LogReader(kind, extra=[Numbers()], year=2026, whole=True)
    for part in parts:
        assert reader.feed(part) == []
    signs = reader.close()
    assert set(reader.failures) <= {"Fails"}
    return signs


FRAGMENTS = st.sampled_from(
    [XID.encode(), b"\n", b"\r", b"\r\n", b"\0", b"\x1b[31m", b"\xff", b"mark", b"often", b"[rank3]: ", b"RuntimeError: CUDA error: x", b"3: ", b"gn07: ",
     b"Mar 05 02:11:40 gn31 kernel: ", b"[ 2210.4] ", b"x" * 17000, b"9" * 5000, b"NVRM: The NVIDIA GPU 0000:b3:00.0\n", b"Killed process 1 (a) total-vm",
     b"oom-kill:constraint=CONSTRAINT_MEMCG,task=a,pid=1,uid=0", b"[E305 02:11:40.0 a.cpp:1] ", b" 10%|# | 1/10 [00:01<00:09]", b"loss: 1.5 step: 3"]
)  # fmt: skip
LOGS = st.lists(FRAGMENTS | st.binary(max_size=12), max_size=30).map(b"".join)


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(["kernel", "job"]), data=LOGS, cuts=st.lists(st.integers(0, 40_000), max_size=8))
def test_how_a_log_is_cut_makes_no_difference(kind: str, data: bytes, cuts: list[int]) -> None:
    whole = signs_of(kind, [data])
    assert signs_of(kind, pieces(data, [min(cut, len(data)) for cut in cuts])) == whole
    assert all(len(sign.raw) <= RAW_CHARS and "\0" not in sign.raw and "\x1b[" not in sign.raw for sign in whole)


def test_of_frequent_lines_a_sample_with_the_last_one() -> None:
    data = "".join(f"often {number} {'.' * 90}\n" for number in range(20_000)).encode()
    seen = []
    for parts in ([data], pieces(data, range(0, len(data), 70_001))):
        numbers = Numbers()
        reader = LogReader("kernel", extra=[numbers])
        for part in parts:
            reader.feed(part)
        reader.close()
        seen.append(numbers.seen)
    assert seen[0] == seen[1]
    assert len(seen[0]) == len(set(seen[0]))
    assert seen[0][:1000] == list(range(1, 1001))
    assert 1001 < len(seen[0]) < 1100
    assert seen[0][-1] == 20_000


def test_a_fragment_finds_what_its_literals_are_in_and_nothing_else() -> None:
    scanner = Scanner([b"RuntimeError", b"error:", b"Xid ("])
    data = b"RuntimeError\nan error here\nerror: x\nXid (\nXid\n"
    assert [data[start:end] for start, end in sorted(scanner.spans(data, False).items())] == [
        b"RuntimeError",
        b"error: x",
        b"Xid (",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "[  12.3] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task_memcg=/user.slice/{xid},task=x,pid=12,uid=7",
        "[  12.3] Memory cgroup stats for /slurm/uid_7/{xid}:",
        "[  12.3] Task in /slurm/uid_7/{xid} killed as a result of limit of /slurm/uid_7",
    ],
)
def test_nobody_can_name_a_cgroup_like_an_xid(line: str) -> None:
    """Whoever has a part of the tree delegated may make one; the kernel writes its name without quotes."""
    assert {s.code.split(".")[0] for s in read_lines("kernel", [line.format(xid=XID)])} <= {"oom"}
    assert [s.code for s in read_lines("kernel", [f"[  12.3] {XID}"])] == ["xid.79"]
