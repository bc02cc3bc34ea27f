"""What ranks print becomes signs in the last post at the latest, and nothing that they print hurts their agent."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.agent_stage import Stage, stage, until
from worker_hooks.agent.sign_record import sign_draft
from worker_hooks.agent.sign_watch import (
    MOST_OF_A_CODE,
    MOST_SIGNS,
    Allowance,
    CopyQueue,
    SignWatch,
    job_log_reader,
)
from worker_hooks.protocol.messages import Reader
from worker_hooks.protocol.records import MAX_ATTRS, decode_record
from worker_hooks.signs.log import LogReader
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def signs(run: Stage, code: str) -> list[dict[str, Any]]:
    return [record for record in run.controller.of_kind("sign") if record["code"] == code]


# --- real agents ------------------------------------------------------------------------------------------------


def test_a_traceback_is_a_sign_of_its_rank_in_the_last_post(run: Stage) -> None:
    before = time.time()
    failing = (
        "import os\nif os.environ['RANK'] == '1': raise ValueError('labels of shape 3')\nimport time; time.sleep(60)"
    )
    assert run.end(run.start("--ranks", "2", program=python(failing)))[0] == 1
    (sign,) = signs(run, "python.exception")
    assert (sign["node"], sign["rank"], sign["layer"], sign["source"]) == ("gpu1", 1, "process", "job_log")
    assert sign["attrs"] == {"type": "ValueError", "text": "labels of shape 3"}
    assert before <= sign["at"] <= time.time() and sign["raw"] == "ValueError: labels of shape 3"


def test_what_a_library_said_before_a_kill_is_told(run: Stage) -> None:
    line = "gpu2:77:99 [1] transport/net_ib.cc:123 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4791> with "
    line += "status=12 opcode=0 len=0 vendor err 129"
    dying = f"import os, signal; print({line!r}, end='', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    assert run.end(run.start(program=python(dying)))[0] == 75
    (sign,) = signs(run, "nccl.ib_completion")
    assert sign["attrs"]["status"] == 12 and sign["rank"] == 0
    assert run.controller.events("rank_exited")[0]["data"] == {"exit_code": None, "signal": 9}


def test_a_quiet_run_has_no_signs_but_its_progress(run: Stage) -> None:
    assert run.end(run.start("--ranks", "2", steps=5))[0] == 0
    assert [sign["code"] for sign in run.controller.of_kind("sign") if sign["layer"] != "progress"] == []
    assert run.controller.events("signs_left_out") == []


def test_hostile_output_goes_through_whole_and_the_memory_stays_bounded(run: Stage) -> None:
    flood = """
import os, random, sys
line, noise = b"x" * (10 << 20) + b"\\n", random.Random(1).randbytes(1 << 20)
out = sys.stdout.buffer
out.write(line)
for _ in range(8): out.write(noise)
for i in range(200_000): out.write(b"ValueError: \\x1b[31mitem %d\\0 of many\\n" % i)
out.write(b"\\xff\\xfe the end\\n"); out.flush()
raise SystemExit(3)
"""
    path = run.folder / "log"
    with path.open("wb") as log:
        agent = run.start(program=python(flood))
        assert agent.stdout is not None
        peak = 0
        for data in iter(lambda: agent.stdout.buffer.read1(1 << 16), b""):
            log.write(data)
            peak = max(peak, resident_mb(agent.pid))
    assert run.end(agent)[0] == 3
    whole = path.read_bytes()
    expected = (
        (10 << 20) + 1 + (8 << 20) + sum(len(b"ValueError: \x1b[31mitem %d\0 of many\n" % i) for i in range(200_000))
    )
    assert len(whole) == expected + len(b"\xff\xfe the end\n") and whole.endswith(b"\xff\xfe the end\n")
    assert peak < 150
    told = signs(run, "python.exception")
    assert told and len(told) <= MOST_OF_A_CODE
    assert all("\0" not in sign["raw"] and "\x1b" not in sign["raw"] for sign in told)


def resident_mb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in text.splitlines() if line.startswith("VmHWM")), 0)


# --- the pieces -------------------------------------------------------------------------------------------------


class Heard:
    """A watch with what it gave, reported and said."""

    def __init__(self, reader: Any = None, queue: CopyQueue | None = None) -> None:
        self.signs: list[Sign] = []
        self.reports: list[tuple[str, int | None, dict[str, int]]] = []
        self.said: list[str] = []
        make = reader or job_log_reader("gpu1", ["gpu1", "gpu2"])
        self.watch = SignWatch(make, self.signs.append, self._report, self.said.append, queue)

    def _report(self, name: str, rank: int | None = None, urgent: bool = False, **data: int) -> None:
        self.reports.append((name, rank, data))

    @property
    def texts(self) -> list[tuple[int | None, Any]]:
        return [(sign.rank, sign.attrs.get("text")) for sign in self.signs]


def test_two_streams_of_a_rank_and_two_ranks_do_not_mix_their_lines() -> None:
    heard = Heard()
    for rank, target, data in [
        (0, 2, b"ValueError: a"),
        (0, 1, b"10%|# | 1/9 [00:01<00:09]"),
        (1, 2, b"KeyError: "),
        (0, 2, b"b\n"),
        (1, 2, b"c\n"),
    ]:
        heard.watch.offer(rank, target, data)
    heard.watch.start()
    heard.watch.finish(10.0)
    assert set(heard.texts) >= {(0, "ab"), (1, "c")} and not heard.said


def test_a_full_queue_skips_counts_and_joins_no_halves() -> None:
    heard = Heard(queue=CopyQueue(limit=64))
    heard.watch.offer(0, 2, b"ValueError: first\nVal")
    heard.watch.offer(0, 2, b"z" * 60)
    heard.watch.offer(1, 2, b"z" * 50)
    heard.watch.offer(0, 2, b"ueError: no\n")
    heard.watch.start()
    heard.watch.finish(10.0)
    assert heard.texts == [(0, "first")]
    assert heard.reports == [
        ("signs_left_out", 0, {"signs": 0, "unread_bytes": 60}),
        ("signs_left_out", 1, {"signs": 0, "unread_bytes": 50}),
    ]


def test_an_offer_waits_for_nobody() -> None:
    stuck = threading.Event()

    class Slow(LogReader):
        def feed(self, data: bytes, at: float | None = None) -> list[Sign]:
            stuck.wait(30)
            return super().feed(data, at)

    heard = Heard(lambda rank: Slow("job", rank=rank))
    heard.watch.start()
    for _ in range(1000):
        heard.watch.offer(0, 1, b"x" * 65536)
    heard.watch.finish(0.0)
    assert not heard.said
    stuck.set()
    heard.watch.finish(30.0)
    assert heard.reports and heard.reports[0][2]["unread_bytes"] > 40 << 20


def test_a_minute_has_room_for_every_code() -> None:
    allowance = Allowance()
    flood = [Sign("python.exception", "x", "process", "job_log", count=2)] * 50
    admitted = [sign for sign in flood if allowance.admits(0, sign)]
    assert len(admitted) == MOST_OF_A_CODE and allowance.left_out[0] == 2 * (50 - MOST_OF_A_CODE)
    assert allowance.admits(0, Sign("cuda.ecc", "x", "process", "job_log"))
    assert allowance.admits(1, flood[0])
    many = [Sign(f"xid.{i}", "x", "kernel", "job_log") for i in range(200)]
    assert sum(allowance.admits(0, sign) for sign in many) == MOST_SIGNS - MOST_OF_A_CODE - 1


def test_a_reader_that_fails_is_said_once_and_keeps_nothing() -> None:
    class Broken(LogReader):
        def feed(self, data: bytes, at: float | None = None) -> list[Sign]:
            raise RuntimeError("no such line")

    queue = CopyQueue()
    heard = Heard(lambda rank: Broken("job", rank=rank), queue)
    heard.watch.start()
    heard.watch.offer(0, 1, b"x\n")
    until(lambda: heard.said)
    heard.watch.offer(0, 1, b"y\n")
    heard.watch.finish(10.0)
    assert heard.said == ["signs in the ranks' output are no longer read: RuntimeError: no such line"]
    assert queue.take() == []


def test_a_recogniser_that_fails_is_said_once() -> None:
    class Clumsy:
        triggers = (b"stumble",)

        def read(self, line: Any) -> list[Sign]:
            raise KeyError(line)

        def close(self) -> list[Sign]:
            return []

    heard = Heard(lambda rank: LogReader("job", rank=rank, extra=[Clumsy()]))
    heard.watch.offer(0, 2, b"stumble\nstumble\nValueError: told\n")
    heard.watch.start()
    heard.watch.finish(10.0)
    assert heard.texts == [(0, "told")]
    assert heard.said == ["Clumsy failed on a line of rank 0: such signs may be missing"]


def test_a_sign_travels_within_the_bounds_of_a_record() -> None:
    attrs = {"n" * 80: "x" * 5000, "nul": "a\0b\ud800", "inf": float("inf"), "big": 1 << 70, "yes": True}
    attrs |= {f"k{i}": i for i in range(50)}
    draft = sign_draft(Sign("a.b", "r" * 9000, "process", "job_log", attrs=attrs, count=3, last_at=2.0, at=1.0), "gpu1")
    body = decode_record(Reader.of({"seq": 1, "kind": draft.kind, "at": draft.at, **draft.body}, "record")).body
    assert body["attrs"]["nul"] == "a\ufffdb?" and body["attrs"]["yes"] is True and "inf" not in body["attrs"]
    assert len(body["attrs"]) == MAX_ATTRS - 2 and (body["node"], body["count"], body["last_at"]) == ("gpu1", 3, 2.0)
