"""The command-line adapter on prepared answers: what it asks, what it reads, and which error each failure becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.durations import UNLIMITED
from controller.slurm.port import SlurmPort
from controller.slurm.runner import Completed
from controller.slurm.views import PastJob
from tests.slurm.scripted import CONFIG, NODE, NOW, ScriptedRunner, job_record, queue, said, slurm, whole

pytestmark = pytest.mark.pure

WHOLE = whole()


def test_one_batched_read() -> None:
    port, runner = slurm(WHOLE)
    view = port.read_cluster()
    assert isinstance(port, SlurmPort)
    assert (view.cluster, str(view.version), view.next_job_id) == ("lab", "22.05.8", 10)
    assert list(view.jobs) == ["7"] and list(view.nodes) == ["gpu1"] and view.nodes_at == view.jobs_at == NOW
    assert view.controller_boot_time == datetime.fromtimestamp(1795950000, UTC) and view.private_data == ()
    assert all("--all" in argv and "--local" in argv for argv in runner.asked) and len(runner.asked) == 6
    partition, reservation = view.partitions["train"], view.reservations["relume-x"]
    assert (partition.nodes, partition.state, partition.hidden) == (("gpu1", "gpu2"), "UP", False)
    assert partition.max_nodes is None and partition.max_time is UNLIMITED and partition.priority_tier == 1
    assert (reservation.nodes, reservation.users, reservation.accounts) == (("gpu1", "gpu2"), ("ada",), ())
    assert reservation.active and reservation.flags == {"IGNORE_JOBS", "SPEC_NODES"}
    assert reservation.end_time == datetime.fromtimestamp(1795982427, UTC)


def test_hidden_jobs_are_told() -> None:
    port, _ = slurm(WHOLE | {"show config": said(CONFIG.replace("PrivateData = none", "PrivateData = jobs,usage"))})
    assert port.read_cluster().private_data == ("jobs", "usage")


@pytest.mark.parametrize("failing", list(WHOLE))
def test_any_failed_part_fails_the_whole_read(failing: str) -> None:
    port, _ = slurm(WHOLE | {failing: said(err="error: Socket timed out on send/recv operation", rc=1)})
    with pytest.raises(SlurmUnavailable):
        port.read_cluster()
    port, _ = slurm(WHOLE | {failing: said("", rc=0), "--json": said("")})
    with pytest.raises(SlurmUnreadable):
        port.read_cluster()


def test_the_number_of_calls_does_not_depend_on_the_number_of_jobs() -> None:
    many = queue(*({"JobID": str(number)} for number in range(1, 400)))
    port, runner = slurm(WHOLE | {"--Format=": many, "--format=%A": many})
    assert len(port.read_cluster().jobs) == 399 and len(runner.asked) == 6
    newer = {"show config": said(CONFIG.replace("22.05.8", "24.11.5")), "--Format=": many}
    port, runner = slurm(WHOLE | newer)
    assert len(port.read_cluster().jobs) == 399 and len(runner.asked) == 5  # its long format has the excluded nodes


def test_one_job_in_doubt_is_read_in_the_surer_form() -> None:
    name = "x\nJobId=8 JobName=y"
    forged = said(job_record(name=name))
    port, runner = slurm(WHOLE | {"show job 7": forged, "--Format=": queue({"Name": name, "RestartCnt": "3"})})
    found = port.read_job("7")
    assert found is not None and (found.name, found.restarts) == (name, 3)
    assert [argv[-2] for argv in runner.asked if argv[0] == "squeue"] == ["--jobs=7", "--jobs=7"]
    gone = said(err="slurm_load_jobs error: Invalid job id specified", rc=1)
    port, _ = slurm(WHOLE | {"show job 7": forged, "--Format=": gone})
    assert port.read_job("7") is None


def test_a_queue_that_prints_another_table_is_read_as_json() -> None:
    fields = {"job_id": 7, "name": "x", "partition": "train", "excluded_nodes": "", "nodes": "gpu1"}
    fields |= {"required_nodes": "", "batch_flag": True, "requeue": True, "restart_cnt": 1, "submit_time": 1795963735}
    answer = said(json.dumps({"errors": [], "jobs": [fields | {"job_state": "RUNNING"}]}))
    table = said("JOBID NAME\n7 x\n")
    for version, command in (("22.05.8", "squeue"), ("23.02.1", "scontrol")):  # 22.05's scontrol knows no JSON
        config = said(CONFIG.replace("22.05.8", version))
        port, runner = slurm({"--json": answer} | WHOLE | {"show config": config, "--Format=": table})
        assert port.read_cluster().jobs["7"].restarts == 1
        assert [argv[0] for argv in runner.asked if "--json" in argv] == [command]


def test_what_changed_is_read_anew_and_what_is_gone_is_forgotten() -> None:
    """The adapter remembers records by their text: nothing of an older answer may come back."""
    answers = WHOLE | {"show nodes": said(NODE + NODE.replace("gpu1", "gpu2"))}
    port, _ = slurm(answers)
    before = port.read_cluster()
    assert port.read_cluster().nodes["gpu2"] is before.nodes["gpu2"]
    assert port.read_cluster().jobs["7"] is before.jobs["7"]
    answers["show nodes"] = said(NODE.replace("State=IDLE", "State=IDLE+DRAIN"))
    answers["--Format="] = queue({"UserName": "eve", "SubmitTime": "1796000000"})  # the id, given again
    after = port.read_cluster()
    assert list(after.nodes) == ["gpu1"] and after.nodes["gpu1"].state.drain and after.jobs["7"].user == "eve"
    answers["--Format="] = queue()
    assert port.read_cluster().jobs == {}
    answers["show config"] = said(CONFIG.replace("SlurmdPort = 6818", "SlurmdPort = 7000"))
    answers["show nodes"] = said(NODE.replace("Port=6818 ", ""))
    assert port.read_cluster().nodes["gpu1"].port == 7000
    answers["show config"] = said(CONFIG)
    assert port.read_cluster().nodes["gpu1"].port == 6818


def test_an_exclusion_alone_changes_a_job() -> None:
    answers = dict(WHOLE)
    port, _ = slurm(answers)
    assert port.read_cluster().jobs["7"].excluded_nodes == ()
    answers["--format=%A"] = queue({"ExcNodes": "gpu[3-4]"})
    assert port.read_cluster().jobs["7"].excluded_nodes == ("gpu3", "gpu4")
    answers["--format=%A"] = queue()  # it left the queue between the two questions
    assert port.read_cluster().jobs["7"].excluded_nodes == ()


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


SINCE = datetime(2026, 8, 21, 10, tzinfo=UTC)
OURS = int(SINCE.timestamp())


def history(*lines: str, job_id: str = "12644090") -> tuple[list[PastJob], ScriptedRunner]:
    port, runner = slurm({"sacct": said("".join(f"{line}\n" for line in lines))})
    return port.read_history(job_id, user="ada", since=SINCE), runner


def test_accounting_is_asked_for_one_job_since_a_moment() -> None:
    """A reused id: a foreign record of years ago, the user's own of years ago, and two starts of this job."""
    past, runner = history(
        f"12644090|12644090|lab|ada|CANCELLED by 1001|0:15|{OURS + 90}|{OURS + 95}|{OURS + 99}|gpu[3-4]",
        f"12644090|12644090|lab|ada|NODE_FAIL|3:0|{OURS}|{OURS + 5}|{OURS + 60}|gpu[1-2]",
        "12644090|12644090|lab|otheruser|COMPLETED|0:0|1507220411|1507220412|1507220499|gpu1",
        "12644090|12644090|lab|ada|COMPLETED|0:0|1507220411|1507220412|1507220499|gpu1",
    )
    first, second = past
    assert (first.state.base, first.exit_code, first.nodes) == ("NODE_FAIL", 3, ("gpu1", "gpu2"))
    assert (second.state.cancelled_by, second.exit_signal) == (1001, 15)
    assert first.submit_time == SINCE and second.end_time == SINCE + timedelta(seconds=99)
    (argv,) = runner.asked
    assert {"--duplicates", "--allocations", "--jobs=12644090", "--allusers", f"--starttime=uts{OURS}"} <= set(argv)
    assert not {"JobName", "Comment", "WorkDir"} & set(argv[-1].removeprefix("--format=").split(","))


def test_accounting_of_one_task() -> None:
    lines = [
        f"7_{task}|{number}|lab|ada|RUNNING|0:0|{OURS}|{OURS}|Unknown|None assigned"
        for task, number in ((1, 8), (2, 7))
    ]
    assert [job.raw_id for job in history(*lines, job_id="7_2")[0]] == [7]
    assert history(*lines, job_id="7_2")[0][0].nodes == () and history(*lines, job_id="7_2")[0][0].end_time is None
    assert history(job_id="7_2")[0] == []


def test_accounting_that_cannot_be_read_or_is_not_there() -> None:
    with pytest.raises(SlurmUnreadable, match="columns"):
        history("12644090|COMPLETED")
    with pytest.raises(SlurmUnreadable, match="without a zone"):
        history("7|7|lab|ada|COMPLETED|0:0|2026-08-21T10:00:00|Unknown|Unknown|gpu1", job_id="7")
    port, _ = slurm({"sacct": said(err="Slurm accounting storage is disabled\n", rc=1)})
    with pytest.raises(SlurmRefused) as refused:
        port.read_history("7", user="ada", since=SINCE)
    assert refused.value.kind is RefusalKind.DISABLED
    away = "sacct: error: Sending PersistInit msg: Connection refused\nsacct: error: Problem talking to the database"
    port, _ = slurm({"sacct": said(err=away, rc=1)})
    with pytest.raises(SlurmUnavailable):
        port.read_history("7", user="ada", since=SINCE)


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
