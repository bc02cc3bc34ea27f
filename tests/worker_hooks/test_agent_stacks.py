"""Where stuck ranks stand: a real rank in a real agent, and every way in which the look itself may go wrong."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.agent_stage import Stage, alive, stage, until

pytestmark = pytest.mark.pure

STUCK = """
import os, time
from pathlib import Path
def load_the_batch():
    while not Path("go-on").exists(): time.sleep(0.2)
def epoch(): load_the_batch()
Path("stuck-" + os.environ["RANK"]).touch()
epoch()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def ask(run: Stage, asked: str = "5", ranks: Any = (0, 1, 7)) -> None:
    run.controller.instructions = [{"kind": "stacks", "id": asked, "ranks": list(ranks)}]


def told(run: Stage) -> list[dict[str, Any]]:
    return [record for record in run.controller.of_kind("sign") if record["code"] == "stack.stuck"]


def stuck(run: Stage, environ: dict[str, str] | None = None, program: str = STUCK) -> "subprocess.Popen[str]":
    agent = run.start("--ranks", "2", program=(sys.executable, "-c", program), environ=environ)
    until(lambda: all((run.folder / f"stuck-{rank}").exists() for rank in (0, 1)))
    return agent


def test_the_function_in_which_a_rank_is_stuck_is_told_once(run: Stage) -> None:
    agent = stuck(run)
    ask(run)
    until(lambda: len(told(run)) == 2)
    messages = len(run.controller.messages)
    until(lambda: len(run.controller.messages) > messages + 3)  # the instruction came with each answer
    signs = told(run)
    assert sorted(sign["rank"] for sign in signs) == [0, 1], "a rank of another node is not this agent's"
    for sign in signs:
        attrs = sign["attrs"]
        assert (sign["layer"], sign["source"], sign["node"]) == ("process", "stacks", "gpu1")
        assert (attrs["function"], attrs["state"], attrs["request"], attrs["gpu"]) == (
            "load_the_batch",
            "S",
            "5",
            False,
        )
        assert "load_the_batch (<string>:" in sign["raw"] and " < epoch (" in sign["raw"]
        assert attrs["pid"] in run.rank_pids()
    (run.folder / "go-on").touch()
    code, errors = run.end(agent)
    assert code == 0 and "py-spy" not in errors


def test_a_shell_between_agent_and_rank_is_looked_through(run: Stage) -> None:
    """The process that writes the slot is the rank."""
    writer = """
import os
from pathlib import Path
from worker_hooks.protocol.slots import SlotWriter
SlotWriter(Path(os.environ["RELUME_RUN_DIR"]) / "slots", int(os.environ["LOCAL_RANK"])).phase("training")
"""
    script = run.folder / "train.py"
    script.write_text(writer + STUCK)
    run.start("--ranks", "2", program=("/bin/sh", "-c", f"{sys.executable} {script}; exit $?"))
    until(lambda: all((run.folder / f"stuck-{rank}").exists() for rank in (0, 1)))
    ask(run)
    until(lambda: len(told(run)) == 2)
    for sign in told(run):
        assert sign["attrs"]["function"] == "load_the_batch" and sign["attrs"]["pid"] not in run.rank_pids()
    (run.folder / "go-on").touch()


def spy_stage(run: Stage, script: str) -> dict[str, str]:
    """An environment in which `py-spy` is that script."""
    folder = run.folder / "bin"
    folder.mkdir()
    (folder / "py-spy").write_text(f"#!/bin/sh\necho $$ >> {run.folder}/spies\n{script}\n")
    (folder / "py-spy").chmod(0o755)
    environ = run.environ()
    return environ | {"PATH": f"{folder}:{environ['PATH']}"}


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Error: Permission denied (os error 13)' >&2; exit 1", "may not look"),
        ("echo '[{\"frames\": 3}]'", "could not be read"),
        ("head -c 200 /dev/urandom", "could not be read"),
        ("exit 3", "exit code 3"),
    ],
    ids=["refused", "another shape", "garbage", "fails"],
)
def test_without_python_frames_the_kernels_view_is_told_and_why_once(run: Stage, script: str, why: str) -> None:
    agent = stuck(run, spy_stage(run, script))
    ask(run)
    until(lambda: len(told(run)) == 2)
    for sign in told(run):
        assert sign["attrs"]["state"] == "S" and why in sign["attrs"]["why"] and "frames" not in sign["attrs"]
        assert "no Python frames" in sign["raw"]
    (run.folder / "go-on").touch()
    code, errors = run.end(agent)
    assert code == 0 and errors.count("only the kernel's view is told") == 1


def test_a_py_spy_that_hangs_holds_nothing_up_and_ends_with_the_agent(run: Stage) -> None:
    agent = stuck(run, spy_stage(run, "exec sleep 600"))
    ask(run)
    spy = int(until(lambda: (run.folder / "spies").exists() and (run.folder / "spies").read_text().split())[0])
    messages = len(run.controller.messages)
    until(lambda: len(run.controller.messages) > messages + 2)
    assert alive(spy) and told(run) == []
    (run.folder / "go-on").touch()
    assert run.end(agent)[0] == 0
    until(lambda: not alive(spy))


def test_a_request_that_makes_no_sense_is_said_and_the_next_one_is_answered(run: Stage) -> None:
    stuck(run)
    run.controller.instructions = [
        {"kind": "stacks", "ranks": [0]},
        {"kind": "stacks", "id": "1", "ranks": "all"},
        {"kind": "stacks", "id": "2", "ranks": [None, "0", True, 1]},
    ]
    until(lambda: told(run))
    assert [sign["rank"] for sign in told(run)] == [1]
    (run.folder / "go-on").touch()
