"""The process that runs pyslurm: whatever pyslurm does in it, its caller gets an answer or an error of ours in time.

Real processes; `pyslurm` in them is a file that each test writes.
"""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.errors import SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.pyslurm_process import PySlurmProcess
from controller.slurm.runner import Runner
from tests.slurm.test_runner import gone

pytestmark = pytest.mark.pure

Made = Callable[[str], PySlurmProcess]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Made]:
    """A process in which `import pyslurm` gives `source`."""
    made: list[PySlurmProcess] = []

    def make(source: str) -> PySlurmProcess:
        (tmp_path / "pyslurm.py").write_text(textwrap.dedent(source))
        made.append(PySlurmProcess(Runner(env=os.environ | {"PYTHONPATH": str(tmp_path)})))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(process: PySlurmProcess, call: str = "version", *, limit: float = 20, write: bool = False) -> object:
    return dict(process.ask(call, {}, limit=limit, write=write))


WELL = """
    class RPCError(Exception): pass
    __version__ = "25.11.2"
"""


def test_an_answer_and_another_from_the_same_process(process: Made) -> None:
    well = process(WELL)
    assert ask(well) == ask(well) == {"value": "25.11.2"}


def test_what_pyslurm_prints_is_no_answer(process: Made) -> None:
    assert ask(process(WELL + '    print("hello")\n    import os; os.write(1, b"more")\n')) == {"value": "25.11.2"}


def test_a_hang_ends_with_its_process_and_the_next_call_is_answered(process: Made, tmp_path: Path) -> None:
    hangs = process(
        WELL
        + f"""
    import ctypes, os
    def _hang():
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        ctypes.PyDLL(None).sleep(600)  # as pyslurm does: inside C, holding the interpreter
    class Jobs: load = _hang
    """
    )
    assert ask(hangs) == {"value": "25.11.2"}
    for write in (True, False):
        with pytest.raises(SlurmTimeout) as caught:
            ask(hangs, "jobs", limit=0.5, write=write)
        assert caught.value.outcome_unknown is write
        pid = int((tmp_path / "pid").read_text() or 0) if (tmp_path / "pid").exists() else 0
        assert not pid or any(gone(pid) or time.sleep(0.05) for _ in range(100))
    assert ask(hangs) == {"value": "25.11.2"}


def test_a_library_that_ends_its_process_says_why(process: Made) -> None:
    """What Slurm's library does without a slurm.conf."""
    dies = process('import os; os.write(2, b"python: fatal: no configuration source\\n"); os._exit(1)')
    with pytest.raises(SlurmUnavailable, match="fatal: no configuration source") as caught:
        ask(dies, write=True)
    assert caught.value.outcome_unknown and "fatal" in caught.value.text


def test_a_crash_of_the_library_is_not_ours(process: Made) -> None:
    crashes = process(
        WELL
        + f"""
    import os
    class Jobs: load = lambda: os.kill(os.getpid(), {int(signal.SIGSEGV)})
    """
    )
    with pytest.raises(SlurmUnavailable):
        ask(crashes, "jobs")
    assert ask(crashes) == {"value": "25.11.2"}


def test_no_pyslurm(process: Made) -> None:
    answer = ask(process("raise ImportError('libslurmfull.so: cannot open')"))
    assert answer == {"error": "ImportError: libslurmfull.so: cannot open", "by": "import", "sent": False}


def test_errors_say_whose_they_are(process: Made) -> None:
    source = """
    class Jobs:
        def load(): raise RPCError("Unable to contact slurm controller (connect failure)")
    class Nodes:
        def load(): raise AttributeError("no nodes")
    """
    both = process(WELL + source)
    assert ask(both, "jobs") == {
        "error": "Unable to contact slurm controller (connect failure)", "by": "slurm", "sent": True
    }  # fmt: skip
    assert ask(both, "nodes") == {"error": "AttributeError: no nodes", "by": "pyslurm", "sent": False}


def test_an_answer_longer_than_we_take(process: Made, tmp_path: Path) -> None:
    (tmp_path / "pyslurm.py").write_text("class RPCError(Exception): pass\n__version__ = 'x' * 300_000\n")
    long = PySlurmProcess(Runner(env=os.environ | {"PYTHONPATH": str(tmp_path)}, max_output=200_000))
    with pytest.raises(SlurmUnreadable):
        ask(long)
    whole = PySlurmProcess(Runner(env=os.environ | {"PYTHONPATH": str(tmp_path)}))
    assert ask(whole) == {"value": "x" * 300_000}
    whole.close()


def test_a_process_that_ended_while_nobody_asked_is_replaced(process: Made) -> None:
    """It does so by itself after some minutes without a question: no error, and no outcome unknown."""
    well = process(WELL)
    ask(well)
    assert well._child is not None
    first = well._child._process
    first.send_signal(signal.SIGKILL)
    first.wait(20)
    assert ask(well, write=True) == {"value": "25.11.2"}
    assert well._child._process.pid != first.pid


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    nobody = PySlurmProcess(Runner(run_as=(str(tmp_path / "no-such-prefix"),)))
    with pytest.raises(SlurmUnavailable) as caught:
        ask(nobody, write=True)
    assert not caught.value.outcome_unknown
