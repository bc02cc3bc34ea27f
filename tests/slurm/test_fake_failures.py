"""How the in-memory Slurm fails when it is told to, and what its file still holds after kill -9."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.fake import FakeSlurm
from controller.slurm.views import HoldKind
from tests.slurm.fake_stage import Clock, job, made

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("effect", "after", "later"), [("never", 0, 0), ("now", 1, 1), ("later", 0, 1)])
def test_a_write_that_times_out(effect: str, after: int, later: int) -> None:
    clock = Clock()
    slurm = made(clock)
    job_id = slurm.submit()
    slurm.tick()
    slurm.fail_next("timeout", call="requeue_job", effect=effect, delay=3)  # type: ignore[arg-type]
    with pytest.raises(SlurmTimeout) as lost:
        slurm.requeue_job(job_id, hold=True)
    assert lost.value.outcome_unknown
    assert job(slurm, job_id).restarts == after
    clock.pass_time(3)
    assert job(slurm, job_id).restarts == later == len(slurm.effects("requeuehold"))


def test_a_late_write_that_is_refused_is_recorded_and_harms_nobody() -> None:
    clock = Clock()
    slurm = made(clock)
    job_id = slurm.submit()
    slurm.tick()
    slurm.fail_next("timeout", call="requeue_job", effect="later", delay=1)
    with pytest.raises(SlurmTimeout):
        slurm.requeue_job(job_id, hold=True)
    slurm.end_job(job_id, "CANCELLED")
    with slurm.world() as world:
        world.jobs[job_id].requeue = False
    clock.pass_time(2)
    assert job(slurm, job_id).state.terminal
    assert [effect.kind for effect in slurm.effects()] == ["late-refused"]


def test_the_other_failures() -> None:
    slurm = made(Clock())
    slurm.fail_next("unavailable", times=2)
    for _ in range(2):
        with pytest.raises(SlurmUnavailable):
            slurm.read_cluster()
    slurm.fail_next("unreadable", call="read_cluster")
    slurm.fail_next("refused", call="drain_node", refusal_kind=RefusalKind.BUSY)
    assert slurm.read_node("gpu1") is not None  # not the call that was meant
    with pytest.raises(SlurmUnreadable):
        slurm.read_cluster()
    with pytest.raises(SlurmRefused) as busy:
        slurm.drain_node("gpu1", "x")
    assert busy.value.retry
    slurm.stop_answering()
    assert not slurm.ping()
    with pytest.raises(SlurmUnavailable):
        slurm.read_job("1")
    with pytest.raises(SlurmUnavailable):
        slurm.hold_job("1")
    slurm.stop_answering(False)
    assert slurm.ping() and slurm.effects() == []


def test_the_file_holds_everything(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "slurm.json"
    slurm = made(clock, path)
    job_id = slurm.submit(num_nodes=2, comment="ü")
    slurm.submit_array([1, 2])
    slurm.drain_node("gpu3", "relume: x")
    slurm.fail_next("timeout", call="hold_job", effect="later", delay=1)
    again = FakeSlurm(clock, path=path)
    assert again.read_cluster() == slurm.read_cluster()
    with pytest.raises(SlurmTimeout):
        again.hold_job(job_id)
    clock.pass_time(2)
    assert job(slurm, job_id).held and slurm.effects() == again.effects() != []


KILLED = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from controller.slurm.fake import FakeSlurm
slurm = FakeSlurm(lambda: datetime.now(UTC), path=Path(sys.argv[1]))
print("ready", flush=True)
while True:
    slurm.update_comment("1", "from " + sys.argv[2])
"""


def test_processes_share_it_and_kill_9_leaves_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "slurm.json"
    slurm = made(Clock(), path)
    slurm.submit(held="JobHeldUser")
    argv = [sys.executable, "-c", KILLED, str(path)]
    writers = [subprocess.Popen([*argv, str(n)], cwd=ROOT, stdout=subprocess.PIPE) for n in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        for _ in range(20):
            slurm.update_comment("1", "ours")
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate(timeout=10)
    ours = [effect for effect in slurm.effects("comment") if effect.detail == "ours"]
    assert len(ours) == 20 and len(slurm.effects("comment")) > 20
    assert job(slurm, "1").hold_kind is HoldKind.USER
