"""What failed ranks left behind is told in their agent's last post, and nothing that it holds hurts that agent."""

import json
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.agent_stage import Stage, stage, until
from worker_hooks.agent import remains
from worker_hooks.agent.remains import MOST_GROUPS, Remains, error_text, rank_settings
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

NAMES = [
    "TORCHELASTIC_ERROR_FILE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
]
TOLD = [("collective.state", "flight_recorder"), ("python.exception", "torchrun")]
# Every rank writes its dump and says so; rank 0 then fails, the others wait to be ended.
RANK = """
import json, os, sys, time
from pathlib import Path
folder, rank, world = Path(os.environ["RELUME_RUN_DIR"]), os.environ["RANK"], int(os.environ["WORLD_SIZE"])
dump = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank)
{leave}
(folder / ("left-" + rank)).touch()
if rank != "0": time.sleep(60)
while len(list(folder.glob("left-*"))) < world: time.sleep(0.01)
sys.exit(7)
"""


def group(number: int, waits: bool, enqueued: int = 8) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": number,
        "process_group": [str(number), "DP"],
        "collective_seq_id": enqueued,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled" if waits else "completed",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
    }


def dump(*groups: dict[str, Any]) -> bytes:
    return json.dumps({"version": "2.10", "entries": list(groups)}).encode()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def python(leave: str) -> tuple[str, ...]:
    return (sys.executable, "-c", RANK.replace("{leave}", leave))


def signs(run: Stage, code: str) -> list[dict[str, Any]]:
    return sorted((s for s in run.controller.of_kind("sign") if s["code"] == code), key=lambda sign: sign["rank"])


# --- real agents ------------------------------------------------------------------------------------------------


def test_the_error_file_of_the_failed_rank_is_told_as_torchruns_word(run: Stage) -> None:
    stack = "Traceback (most recent call last):\n  File 'a.py', line 3, in <module>\nValueError: labels of shape 3\n"
    content = {"message": {"message": "ValueError: labels of shape 3", "extraInfo": {"py_callstack": stack}}}
    leave = f"Path(os.environ['TORCHELASTIC_ERROR_FILE']).write_text({json.dumps(content)!r})"
    assert run.end(run.start("--ranks", "2", program=python(leave)))[0] == 7
    (sign,) = signs(run, "python.exception")  # the other rank was ended by the agent: its file is no failure's
    assert (sign["node"], sign["rank"], sign["layer"], sign["source"]) == ("gpu1", 0, "process", "torchrun")
    assert sign["attrs"] == {"type": "ValueError", "text": "labels of shape 3"} and "count" not in sign


def test_the_dumps_of_all_ranks_are_told_also_of_those_that_did_not_fail(run: Stage) -> None:
    leave = f"dump.write_bytes({dump(group(3, waits=True))!r}.replace(b': 8', b': ' + str(8 + int(rank)).encode()))"
    assert run.end(run.start("--ranks", "2", program=python(leave)))[0] == 7
    first, second = signs(run, "collective.state")
    assert [sign["rank"] for sign in (first, second)] == [0, 1] and first["source"] == "flight_recorder"
    assert (first["attrs"]["enqueued"], second["attrs"]["enqueued"]) == (8, 9) and first["attrs"]["waiting"] == 1
    assert signs(run, "flight_recorder.refused") == []


class _Harm:
    """Unpickled with the standard library it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_dump_that_would_run_code_is_refused_and_reported_and_runs_nothing(run: Stage) -> None:
    trap = run.folder / "ran"
    harm = pickle.dumps({"entries": [_Harm(trap)]})
    leave = f"dump.write_bytes({harm!r} if rank == '0' else {dump(group(3, waits=False))!r})"
    assert run.end(run.start("--ranks", "2", program=python(leave)))[0] == 7
    (sign,) = signs(run, "flight_recorder.refused")
    assert (sign["rank"], sign["node"]) == (0, "gpu1") and "mkdir" in sign["attrs"]["text"]
    assert not trap.exists()
    assert [sign["rank"] for sign in signs(run, "collective.state")] == [1]
    pickle.loads(harm)  # the trap is one
    assert trap.exists()


def test_links_and_pipes_are_not_read_and_hold_nobody_up(run: Stage) -> None:
    secret = run.folder / "secret"
    secret.write_bytes(dump(group(3, waits=True)))
    leave = f"dump.symlink_to({str(secret)!r}) if rank == '0' else os.mkfifo(dump)\n"
    leave += "os.mkfifo(os.environ['TORCHELASTIC_ERROR_FILE'])"
    code, log = run.end(run.start("--ranks", "2", program=python(leave)))
    assert code == 7 and "the error file of rank 0 is not read: it is no regular file" in log
    link, pipe = signs(run, "flight_recorder.refused")
    assert "symbolic links" in link["attrs"]["text"] and pipe["attrs"]["text"] == "it is no regular file"
    assert signs(run, "collective.state") == []


def test_variables_of_the_user_stay_and_their_files_are_left_alone(run: Stage) -> None:
    mine = run.folder / "mine"
    own = {"TORCHELASTIC_ERROR_FILE": str(mine), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{mine}-", NAMES[1]: "77"}
    show = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {NAMES}}})); raise SystemExit(3)"
    agent = run.start(program=(sys.executable, "-c", show), environ={**run.environ(), **own})
    out, _ = agent.communicate(timeout=40)
    seen = dict.fromkeys(NAMES) | own | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    assert json.loads(out) == seen and agent.returncode == 3


def test_a_run_that_finishes_tells_of_no_dump(run: Stage) -> None:
    leave = f"dump.write_bytes({dump(group(3, waits=True))!r}); sys.exit(0)"
    assert run.end(run.start(program=python(leave)))[0] == 0
    assert signs(run, "collective.state") == []


def test_what_was_left_under_a_killed_agent_is_told_by_the_next_one_in_its_name(run: Stage) -> None:
    error = json.dumps({"message": {"message": "ValueError: labels of shape 3"}})
    leave = f"Path(os.environ['TORCHELASTIC_ERROR_FILE']).write_text({error!r})\n"
    leave += f"dump.write_bytes({dump(group(3, waits=True))!r}); (folder / ('left-' + rank)).touch(); time.sleep(60)"
    agent = run.start("--ranks", "2", program=python(leave))
    until(lambda: len(list(run.folder.glob("tmp/*/*/left-*"))) == 2 and run.controller.events("rank_started"))
    agent.kill()
    agent.wait(timeout=10)
    assert signs(run, "collective.state") == []
    run.start(environ=run.environ(restart=1), end="hang")
    until(lambda: len(told_of(run, 1)) >= 4)
    assert sorted(told_of(run, 1)) == [(code, source, rank) for code, source in TOLD for rank in (0, 1)]
    assert [path.name.split(".")[1] for path in run.folder.glob("tmp/*/*")] == ["g2"]


def told_of(run: Stage, generation: int) -> list[tuple[str, str, int]]:
    messages = [message for message in list(run.controller.messages) if message["generation"] == generation]
    records = {record["seq"]: record for message in messages for record in message["records"]}
    return [(r["code"], r["source"], r["rank"]) for r in records.values() if r["kind"] == "sign"]


# --- the pieces -------------------------------------------------------------------------------------------------


class Heard:
    def __init__(self, folder: Path) -> None:
        self.signs: list[Sign] = []
        self.left_out: list[tuple[int | None, int]] = []
        self.said: list[str] = []
        self.remains = Remains(folder, "gpu1", self.signs.append, self._report, self.said.append)

    def _report(self, name: str, rank: int | None = None, urgent: bool = False, **data: int) -> None:
        self.left_out.append((rank, data["signs"]))

    @property
    def codes(self) -> list[tuple[int | None, str]]:
        return [(sign.rank, sign.code) for sign in self.signs]


def test_each_rank_gets_files_of_its_own_and_one_name_set_by_the_user_keeps_both(tmp_path: Path) -> None:
    assert rank_settings({}, tmp_path, 5) == {
        "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error-5.json"),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr-dump_"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "fr-dump_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    for name, other in (NAMES[1:3], NAMES[2:0:-1], NAMES[3:5], NAMES[4:2:-1]):
        settings = rank_settings({name: ""}, tmp_path, 5)
        assert name not in settings and other not in settings and len(settings) == 4


def test_a_dump_that_is_not_read_in_time_is_refused_and_what_comes_later_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, entered = threading.Event(), threading.Event()
    read = remains.read_dump

    def slow(data: bytes, rank: int | None, *rest: Any) -> list[Sign]:
        if rank == 1:
            entered.set()
            stuck.wait(30)
        return read(data, rank, *rest)

    monkeypatch.setattr(remains, "read_dump", slow)
    for rank in (0, 1, 2):
        (tmp_path / f"fr-dump_{rank}").write_bytes(dump(group(3, waits=True)))
    heard = Heard(tmp_path)
    heard.remains.tell([0, 1, 2, 3], [], 2.0)
    assert entered.is_set()
    refusals = [(1, "flight_recorder.refused"), (2, "flight_recorder.refused")]
    assert heard.codes == [(0, "collective.state"), *refusals]
    assert heard.signs[1].attrs["text"] == "not read within 2 s"
    stuck.set()
    for thread in threading.enumerate():
        if thread.name == "relume-remains":
            thread.join(30)
    assert len(heard.signs) == 3 and not heard.said


def test_too_many_groups_leave_room_for_those_in_which_something_waits(tmp_path: Path) -> None:
    groups = [group(number, waits=number >= 70) for number in range(80)]
    (tmp_path / "fr-dump_0").write_bytes(dump(*groups))
    heard = Heard(tmp_path)
    heard.remains.tell([0], [], 30.0)
    assert len(heard.signs) == MOST_GROUPS and heard.left_out == [(0, 80 - MOST_GROUPS)]
    assert sum(bool(sign.attrs["waiting"]) for sign in heard.signs) == 10


def test_files_beyond_the_bounds_are_not_read(tmp_path: Path) -> None:
    for name in ("fr-dump_0", "error-0.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(40 << 20)
    (tmp_path / "fr-dump_1").mkdir()
    heard = Heard(tmp_path)
    heard.remains.tell([0, 1], [0], 30.0)
    assert [sign.attrs["text"] for sign in heard.signs] == ["larger than 32 MiB", "Is a directory"]
    assert heard.said == ["the error file of rank 0 is not read: larger than 4 MiB"]


def test_a_failure_of_the_reader_is_said_and_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[Sign]:
        raise KeyError("entries")

    monkeypatch.setattr(remains, "read_dump", broken)
    (tmp_path / "fr-dump_0").write_bytes(b"{}")
    heard = Heard(tmp_path)
    heard.remains.tell([0], [], 30.0)
    assert heard.codes == [(0, "flight_recorder.refused")] and heard.signs[0].attrs["text"] == "KeyError: 'entries'"
    assert heard.said == ["what the ranks left behind could not be read: KeyError: 'entries'"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"message": "Signal 9 (SIGKILL) received by PID 7"}, "Signal 9 (SIGKILL) received by PID 7"),
        ({"message": {"message": "OSError: 1", "extraInfo": {"py_callstack": "f\nOSError: 1\n"}}}, "f\nOSError: 1"),
        ({"message": {"message": "OSError: 1", "extraInfo": {"py_callstack": "in f"}}}, "in f\nOSError: 1"),
        ({"message": {"message": ["x"], "extraInfo": "y"}}, ""),
        ({"message": {"message": "x\n" * 1000 + "end"}}, "x\n" * 199 + "end"),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_text_of_an_error_file(content: dict[str, Any], text: str) -> None:
    assert error_text(json.dumps(content).encode()) == text


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000, b"\xff\xfe{}", b'"x"'])
def test_an_error_file_of_another_kind_is_said(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "error-0.json").write_bytes(data)
    heard = Heard(tmp_path)
    heard.remains.tell([0], [0], 30.0)
    assert heard.said == ["the error file of rank 0 is not read: it is not what torchrun writes"] and not heard.signs
