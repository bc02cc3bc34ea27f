"""The contract on the adapter for pyslurm, over a double of pyslurm on the in-memory Slurm; and the adapter's errors.

The real pyslurm runs the same contract in tests/cluster/test_pyslurm_real.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.errors import SlurmUnavailable, SlurmUnreadable
from controller.slurm.fake import FakeSlurm
from controller.slurm.pyslurm import PySlurm
from controller.slurm.views import ReservationView
from tests.slurm.contract import SlurmContract
from tests.slurm.pyslurm_double import InThisProcess
from tests.slurm.test_fake_contract import FakeBench

pytestmark = pytest.mark.pure


class Commands(FakeSlurm):
    def read_config(self) -> Mapping[str, str]:
        view = self.read_cluster()
        ours = {"SLURM_VERSION": str(view.version), "ClusterName": view.cluster, "NEXT_JOB_ID": str(view.next_job_id)}
        return {**view.config, **ours}

    def read_reservations(self) -> Mapping[str, ReservationView]:
        return self.read_cluster().reservations


def adapter(slurm: FakeSlurm) -> PySlurm:
    """pyslurm and the commands are two ways to the same Slurm."""
    commands = Commands(slurm._clock, options=slurm._options, user=slurm._user, admin=slurm._admin)
    commands._store = slurm._store
    process = InThisProcess(slurm)
    return PySlurm(slurm._clock, commands, "22.05", process, process, process)


class PySlurmBench(FakeBench):
    port: PySlurm

    def __init__(self) -> None:
        super().__init__(None)
        self.port = adapter(self.slurm)
        self.owner_port = adapter(self.slurm.seen_by("ada"))

    @property
    def asked(self) -> list[str]:
        assert isinstance(self.port.reader, InThisProcess)
        return self.port.reader.asked


@pytest.fixture
def bench() -> PySlurmBench:
    return PySlurmBench()


class TestPySlurmDouble(SlurmContract):
    pass


# what the contract does not reach


def test_another_release_is_an_error_and_asks_for_another_choice(bench: PySlurmBench) -> None:
    bench.port.release = "25.11"
    with pytest.raises(SlurmUnreadable, match=r"slurmctld is 22\.05"):
        bench.port.read_cluster()
    assert bench.port.outdated


def test_what_pyslurm_cannot_name_surely_is_written_by_the_commands(
    bench: PySlurmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task, a whole array by its number, a component, and an id that pyslurm does not know."""
    task, _ = bench.submit_array([1, 2])
    leader, component = bench.slurm.submit_het([{"name": "a"}, {"name": "b"}], held="JobHeldUser")
    plain = bench.submit(held=True)
    said: list[str] = []
    monkeypatch.setattr(Commands, "hold_job", lambda self, job_id: said.append(job_id))
    doubtful = [task, task.partition("_")[0], leader, component, "99999"]
    for job_id in doubtful:
        bench.port.hold_job(job_id)
    assert said == doubtful
    bench.port.hold_job(plain)
    assert said == doubtful and bench.asked[-1] == "hold"


def test_an_empty_list_of_exclusions_is_sent_by_the_commands(bench: PySlurmBench) -> None:
    held = bench.submit(held=True)
    bench.port.exclude_nodes(held, [bench.nodes[0]])
    assert bench.asked[-1] == "modify"
    asked = len(bench.asked)
    bench.port.exclude_nodes(held, [])
    bench.port.set_reservation(held, "")
    assert len(bench.asked) == asked and bench.job(held).excluded_nodes == ()


def test_a_write_whose_look_failed_was_not_sent(bench: PySlurmBench) -> None:
    """A job that was read before needs no look: its write may have arrived."""
    job_id, known = bench.submit(held=True), bench.submit(held=True)
    bench.job(known)
    bench.slurm.stop_answering()
    with pytest.raises(SlurmUnavailable) as looked:
        bench.port.hold_job(job_id)
    with pytest.raises(SlurmUnavailable) as wrote:
        bench.port.hold_job(known)
    with pytest.raises(SlurmUnavailable) as drained:
        bench.port.drain_node(bench.nodes[0], "x")
    assert [e.value.outcome_unknown for e in (looked, wrote, drained)] == [False, True, True]
    assert bench.port.ping() is False
    bench.slurm.stop_answering(away=False)
    assert bench.port.ping() is True


def test_an_error_of_pyslurms_own_is_no_answer_of_slurms(bench: PySlurmBench) -> None:
    class Broken:
        def ask(self, call: str, arguments: Mapping[str, Any], *, limit: float, write: bool) -> Mapping[str, Any]:
            return {"error": "AttributeError: no such thing", "by": "pyslurm", "sent": False}

    bench.port.reader = bench.port.node_writer = Broken()
    for call in (bench.port.read_cluster, bench.port.ping, lambda: bench.port.resume_node("gpu1")):
        with pytest.raises(SlurmUnreadable, match="AttributeError"):
            call()


def test_reservations_are_read_by_the_commands_where_there_are_any(bench: PySlurmBench) -> None:
    assert bench.port.read_cluster().reservations == {} and bench.port.read_reservation("maint") is None
    bench.slurm.add_reservation("maint", ["gpu1"], ["root"])
    assert set(bench.port.read_cluster().reservations) == {"maint"}
    found = bench.port.read_reservation("maint")
    assert found is not None and found.nodes == ("gpu1",) and found.users == ("root",)


def test_only_the_worker_imports_pyslurm() -> None:
    """It would end this process where Slurm is not configured, and is GPL: an optional extra of the site's choice."""
    root = Path(__file__).resolve().parents[2]
    users = [path.name for path in (root / "controller").rglob("*.py") if "import pyslurm\n" in path.read_text()
             or "import pyslurm as" in path.read_text()]  # fmt: skip
    assert users == ["pyslurm_worker.py"]
