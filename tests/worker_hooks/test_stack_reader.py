"""What is read of a stuck process, on a /proc and with a py-spy of our own, and what becomes of it as a sign."""

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker_hooks.agent.proc_view import Processes
from worker_hooks.agent.py_spy import Spy
from worker_hooks.agent.stacks import MOST_RANKS, StackReader
from worker_hooks.signs.sign import RAW_CHARS, Sign
from worker_hooks.signs.stack import kernel_view, python_stack, stack_sign

pytestmark = pytest.mark.pure

STAT = "{pid} (py (x) y) {state} {parent} " + " ".join(["1"] * 17) + " {began} 0 0\n"
FRAME = {"name": "wait", "filename": "/opt/train.py", "line": 7, "locals": None}


def thread(frames: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    return {"pid": 9, "thread_name": "MainThread", "os_thread_id": 9, "frames": frames} | keys


# --- a /proc of our own -----------------------------------------------------------------------------------------


class Host:
    """A /proc with one rank (pid 50) of an agent, and a py-spy that answers as told."""

    def __init__(self, folder: Path, answer: str = "echo", limit_s: float = 5.0) -> None:
        self.proc, self.signs, self.said = folder / "proc", [], []
        self.process(50)
        (folder / "py-spy").write_text(f"#!/bin/sh\n{answer}\n")
        (folder / "py-spy").chmod(0o755)
        rank = SimpleNamespace(rank=3, local_rank=0, pid=50, end=None)
        state = SimpleNamespace(
            group=SimpleNamespace(ranks=[rank]), slots=lambda: [None], placement=SimpleNamespace(node="gpu1")
        )
        self.rank = rank
        environ = {"PATH": f"{folder}:/usr/bin:/bin"}
        self.reader = StackReader(state, self.signs.append, self.said.append, environ, self.proc, limit_s)  # type: ignore[arg-type]

    def process(
        self, pid: int, state: str = "S", began: int = 77, parent: int = 40, task: int | None = None, **files: str
    ):
        folder = self.proc / str(pid) / "task" / str(task or pid)
        folder.mkdir(parents=True, exist_ok=True)
        stat = STAT.format(pid=task or pid, state=state, parent=parent, began=began)
        for name, text in {"stat": stat, **files}.items():
            (folder / name).write_text(text)

    def look(self) -> Sign:
        self.reader._look("9", [3])
        (sign,) = self.signs
        return sign


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, f"echo '{json.dumps([thread([FRAME])])}'")


def test_uninterruptible_sleep_in_nfs_is_told_with_its_place(host: Host) -> None:
    stack = "[<0>] nfs_wait_bit_killable+0x1e/0x90 [nfs]\n[<0>] nfs4_proc_read+0x10/0x20\nno frame\n"
    host.process(50, "D", wchan="nfs_wait_bit_killable", syscall="17 0x3 0x0", stack=stack)
    sign = host.look()
    assert sign.attrs["state"] == "D" and sign.attrs["wchan"] == "nfs_wait_bit_killable"
    assert sign.attrs["kernel_stack"] == "nfs_wait_bit_killable < nfs4_proc_read"
    assert (sign.attrs["syscall"], sign.attrs["function"]) == (17, "wait")
    assert sign.raw.startswith("rank 3 (pid 50): state D in nfs_wait_bit_killable")


def test_another_thread_in_uninterruptible_sleep_comes_before_a_main_thread_that_waits_for_it(host: Host) -> None:
    host.process(50, "S", wchan="futex_wait_queue", syscall="running")
    host.process(50, "S", task=51, wchan="futex_wait_queue")
    host.process(50, "D", task=52, wchan="rpc_wait_bit_killable")
    sign = host.look()
    assert (sign.attrs["state"], sign.attrs["wchan"]) == ("D", "rpc_wait_bit_killable")


def test_what_the_kernel_does_not_show_is_left_out(host: Host) -> None:
    host.process(50, "R", wchan="0", syscall="running")
    assert {"wchan", "syscall", "kernel_stack"}.isdisjoint(host.look().attrs)


def test_an_open_gpu_is_told(host: Host) -> None:
    files = host.proc / "50" / "fd"
    files.mkdir()
    (files / "0").symlink_to("/dev/null")
    (files / "1").symlink_to("/dev/nvidia3")
    assert host.look().attrs["gpu"] is True


@pytest.mark.parametrize("pid", [50, 51])
def test_a_number_that_another_process_has_by_now_is_not_told(tmp_path: Path, pid: int) -> None:
    """The process ends while py-spy looks at it, and a new one gets its number."""
    host = Host(tmp_path)
    later = STAT.format(pid=50, state="S", parent=1, began=99).strip()
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\necho '{later}' > {host.proc}/{pid}/task/{pid}/stat 2>/dev/null\n")
    host.reader._look("9", [3])
    assert len(host.signs) == (0 if pid == 50 else 1)


def test_a_rank_that_has_ended_is_not_looked_at(host: Host) -> None:
    host.process(50, "Z")
    host.reader._look("9", [3])
    host.process(50, "S")
    host.rank.end = object()
    host.reader._look("9", [3])
    assert host.signs == []


def test_py_spy_that_is_not_there_is_a_fact_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    host = Host(tmp_path)
    shutil.move(tmp_path / "py-spy", tmp_path / "other")
    host.reader._spy = Spy({"PATH": str(tmp_path)}, 5.0)
    host.reader._look("1", [3])
    host.reader._look("2", [3])
    assert [sign.attrs["state"] for sign in host.signs] == ["S", "S"] and len(host.said) == 1
    assert "not installed" in host.said[0]


def test_a_py_spy_that_hangs_or_floods_is_ended_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "py-spy").chmod(0o755)
    spy = Spy({"PATH": f"{tmp_path}:/usr/bin:/bin"}, 0.2)
    assert "did not answer" in spy(os.getpid()).why
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec cat /dev/zero\n")
    spy = Spy({"PATH": f"{tmp_path}:/usr/bin:/bin"}, 60.0)
    assert "said too much" in spy(os.getpid()).why
    spy.end()
    assert "still hangs" in spy(os.getpid()).why


def test_only_so_many_ranks_are_looked_at(host: Host) -> None:
    host.reader._look("9", [*range(10, 10 + MOST_RANKS), 3])
    assert host.signs == []


def test_a_process_that_cannot_be_read_costs_nothing(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    assert processes.find(1) is None and processes.kernel(1) is None
    assert not processes.descends(1, 1) and not processes.uses_gpu(1)


# --- what was read, as a sign -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", "[" * 100000, json.dumps([thread([1])]), '[{"frames": []}]'])  # type: ignore[list-item]
def test_what_is_not_py_spys_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        python_stack(text, 9)


def test_the_main_thread_is_the_one_that_counts_and_only_its_innermost_frames() -> None:
    deep = [{**FRAME, "name": f"f{n}", "line": n} for n in range(100)]
    name, frames = python_stack(json.dumps([thread([FRAME], thread_name="io", os_thread_id=12), thread(deep)]), 9)
    assert name == "MainThread" and [frame.function for frame in frames] == [f"f{n}" for n in range(12)]


def test_a_hostile_stack_stays_within_its_bounds() -> None:
    frame = {"name": "x\x1b[31m\n" * 500, "filename": "/" + "y" * 9000, "line": -5}
    _, frames = python_stack(json.dumps([thread([frame] * 50)]), 9)
    sign = stack_sign(1, 9, frames, kernel_view(STAT.format(pid=9, state="S", parent=1, began=1)), "gpu1", 1.0)
    assert len(sign.raw) < RAW_CHARS and sign.raw.isprintable()
    assert all(len(value) <= 2048 for value in sign.attrs.values() if isinstance(value, str))
