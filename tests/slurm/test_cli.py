"""The command-line adapter on prepared answers: what it asks, and which error each failure becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.cli import CliSlurm
from controller.slurm.port import SlurmPort
from controller.slurm.runner import Completed, Runner
from tests.slurm.scripted import CONFIG, NODE, ScriptedRunner, job_record, said

pytestmark = pytest.mark.pure

NOW = datetime(2026, 11, 29, 15, tzinfo=UTC)
WHOLE: dict[str, Completed | OSError] = {
    "show config": said(CONFIG),
    "show nodes": said(NODE),
    "show jobs": said(job_record()),
    "--format=%A": said("7\n"),
}


def slurm(answers: dict[str, Completed | OSError]) -> tuple[CliSlurm, ScriptedRunner]:
    runner = ScriptedRunner(answers)
    return CliSlurm(clock=lambda: NOW, reader=cast(Runner, runner)), runner


def test_one_batched_read() -> None:
    port, runner = slurm(WHOLE)
    view = port.read_cluster()
    assert isinstance(port, SlurmPort)
    assert (view.cluster, str(view.version), view.next_job_id) == ("lab", "22.05.8", 10)
    assert list(view.jobs) == ["7"] and list(view.nodes) == ["gpu1"] and view.nodes_at == view.jobs_at == NOW
    assert view.controller_boot_time == datetime.fromtimestamp(1795950000, UTC) and view.private_data == ()
    assert all("--all" in argv and "--local" in argv for argv in runner.asked) and len(runner.asked) == 4


def test_hidden_jobs_are_told() -> None:
    port, _ = slurm(WHOLE | {"show config": said(CONFIG.replace("PrivateData = none", "PrivateData = jobs,usage"))})
    assert port.read_cluster().private_data == ("jobs", "usage")


@pytest.mark.parametrize("failing", list(WHOLE))
def test_any_failed_part_fails_the_whole_read(failing: str) -> None:
    port, _ = slurm(WHOLE | {failing: said(err="error: Socket timed out on send/recv operation", rc=1)})
    with pytest.raises(SlurmUnavailable):
        port.read_cluster()
    port, _ = slurm(WHOLE | {failing: said("", rc=0)} | ({"--json": said("")} if failing == "--format=%A" else {}))
    with pytest.raises(SlurmUnreadable):
        port.read_cluster()


def test_a_job_in_doubt_is_read_in_the_surer_form() -> None:
    forged = job_record(name="x\nJobId=8 JobName=y")
    fields = {"job_id": 7, "name": "x\nJobId=8 JobName=y", "partition": "train", "excluded_nodes": "", "nodes": "gpu1"}
    fields |= {"required_nodes": "", "batch_flag": True, "requeue": True, "restart_cnt": 1, "submit_time": 1795963735}
    answer = said(json.dumps({"errors": [], "jobs": [fields | {"job_state": "RUNNING"}]}))
    port, runner = slurm(WHOLE | {"show jobs": said(forged), "show job 7": said(forged), "--json": answer})
    assert {job_id: job.name for job_id, job in port.read_cluster().jobs.items()} == {"7": fields["name"]}
    found = port.read_job("7")
    assert found is not None and found.restarts == 1
    assert [argv[0] for argv in runner.asked if "--json" in argv] == ["squeue", "squeue"]  # 22.05 has no other
    newer = CONFIG.replace("22.05.8", "24.11.5")
    port, runner = slurm({"--json": answer} | WHOLE | {"show config": said(newer), "show jobs": said(forged)})
    port.read_cluster()
    assert [argv[0] for argv in runner.asked if "--json" in argv] == ["scontrol"]


@pytest.mark.parametrize(
    ("done", "error"),
    [
        (said(rc=None, timed_out=True), SlurmTimeout),
        (said(rc=None, truncated=True), SlurmUnreadable),
        (said(rc=-9), SlurmUnavailable),
        (OSError(2, "no scontrol"), SlurmUnavailable),
        (said(err="Unexpected message received for job 7", rc=1), SlurmUnavailable),
        (said(err="Access/permission denied for job 7", rc=1), SlurmRefused),
        (said(err="something new", rc=1), SlurmRefused),
    ],
)
def test_failures_of_reads_and_writes(done: Completed | OSError, error: type[Exception]) -> None:
    port, runner = slurm({"": done})
    calls: list[Callable[[], object]] = [lambda: port.read_job("7"), lambda: port.requeue_job("7", hold=True)]
    for call in calls:
        with pytest.raises(error):
            call()
    assert len(runner.asked) == 2  # nothing is sent twice


@pytest.mark.parametrize(
    ("done", "unknown"),
    [
        (said(rc=None, timed_out=True), True),
        (said(rc=-15), True),
        (said(err="Unexpected message received for job 7", rc=1), True),
        (said(err="slurm_update error: Socket timed out on send/recv operation", rc=1), True),
        (said(err="slurm_update error: Unable to contact slurm controller (connect failure)", rc=1), False),
        (OSError(2, "no scontrol"), False),
    ],
)
def test_whether_a_write_may_have_happened(done: Completed | OSError, unknown: bool) -> None:
    port, _ = slurm({"": done})
    with pytest.raises(SlurmUnavailable) as away:
        port.requeue_job("7", hold=True)
    assert away.value.outcome_unknown is unknown
    with pytest.raises(SlurmUnavailable) as away:
        port.read_node("gpu1")
    assert away.value.outcome_unknown is False


def test_an_unknown_refusal_keeps_its_text() -> None:
    port, _ = slurm({"": said(err="something new\n", rc=1)})
    with pytest.raises(SlurmRefused) as refused:
        port.hold_job("7")
    assert refused.value.kind is RefusalKind.OTHER and refused.value.text == "something new"


def test_every_write_is_one_call_with_separate_arguments() -> None:
    port, runner = slurm({"": said("")})
    port.drain_node("gpu2", "relume: x=1 'y' \"z\"")
    port.down_node("gpu2", "relume: gone")
    port.resume_node("gpu2")
    port.hold_job("123_4")
    port.release_job("123_4")
    port.requeue_job("123_4", hold=True)
    port.requeue_job("7", hold=False)
    port.exclude_nodes("7", ["gpu3", "gpu1", "gpu2"], start_time="now")
    port.exclude_nodes("7", [])
    port.set_start_now("7")
    port.cancel_job("7")
    port.cancel_job("7", signal="USR2")
    port.update_comment("7", "relume: run=1")
    assert runner.asked == [
        ["scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=relume: x=1 'y' \"z\""],
        ["scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=relume: gone"],
        ["scontrol", "update", "NodeName=gpu2", "State=RESUME"],
        ["scontrol", "hold", "123_4"],
        ["scontrol", "release", "123_4"],
        ["scontrol", "requeuehold", "123_4"],
        ["scontrol", "requeue", "7"],
        ["scontrol", "update", "JobId=7", "ExcNodeList=gpu[1-3]", "StartTime=now"],
        ["scontrol", "update", "JobId=7", "ExcNodeList="],
        ["scontrol", "update", "JobId=7", "StartTime=now"],
        ["scancel", "--verbose", "7"],
        ["scancel", "--verbose", "--signal=USR2", "7"],
        ["scontrol", "update", "JobId=7", "Comment=relume: run=1"],
    ]


def test_node_and_job_writes_may_have_credentials_of_their_own() -> None:
    reader, jobs, nodes = (ScriptedRunner({"": said("")}) for _ in range(3))
    port = CliSlurm(lambda: NOW, cast(Runner, reader), job_writer=cast(Runner, jobs), node_writer=cast(Runner, nodes))
    port.drain_node("gpu1", "x")
    port.hold_job("7")
    assert (len(reader.asked), len(jobs.asked), len(nodes.asked)) == (0, 1, 1)


@pytest.mark.parametrize(
    ("done", "up"),
    [
        (said("Slurmctld(primary) at head is UP\n"), True),
        (said("Slurmctld(primary) at head is DOWN\nSlurmctld(backup) at spare is UP\n"), True),
        (said("Slurmctld(primary) at head is DOWN\n***\n", rc=1), False),
    ],
)
def test_ping(done: Completed, up: bool) -> None:
    assert slurm({"ping": done})[0].ping() is up


def test_ping_that_says_neither_is_unreadable() -> None:
    with pytest.raises(SlurmUnreadable):
        slurm({"ping": said("hm")})[0].ping()
