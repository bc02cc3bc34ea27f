"""The command-line adapter on prepared answers: what it asks, and which error each failure becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.cli import CliSlurm
from controller.slurm.durations import UNLIMITED
from controller.slurm.port import SlurmPort
from controller.slurm.refusals import error_from
from controller.slurm.runner import Completed, Runner
from controller.slurm.views import PastJob
from tests.slurm.scripted import CONFIG, NODE, RESERVATION, Answer, ScriptedRunner, job_record, queue, said, whole

pytestmark = pytest.mark.pure

NOW = datetime(2026, 11, 29, 15, tzinfo=UTC)
WHOLE = whole()


def slurm(answers: Mapping[str, Answer]) -> tuple[CliSlurm, ScriptedRunner]:
    runner = ScriptedRunner(answers)
    return CliSlurm(clock=lambda: NOW, reader=cast(Runner, runner)), runner


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


def test_a_write_that_failed_without_a_word_may_have_arrived() -> None:
    silent = error_from(" \n", call="scontrol requeuehold", write=True)
    assert isinstance(silent, SlurmUnavailable) and silent.outcome_unknown
    read = error_from("", call="scontrol show", write=False)
    assert isinstance(read, SlurmUnavailable) and not read.outcome_unknown


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
    port.reserve_nodes("relume-1", ["gpu2", "gpu1"], user="ada", minutes=5)
    port.delete_reservation("relume-1")
    port.set_reservation("7", "relume-1")
    port.set_reservation("7", "")
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
        ["scontrol", "create", "ReservationName=relume-1", "Nodes=gpu[1-2]", "Users=ada", "StartTime=now", "Duration=5",
         "Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"],
        ["scontrol", "delete", "ReservationName=relume-1"],
        ["scontrol", "update", "JobId=7", "ReservationName=relume-1"],
        ["scontrol", "update", "JobId=7", "ReservationName="],
    ]  # fmt: skip


def test_node_and_job_writes_may_have_credentials_of_their_own() -> None:
    reader, jobs, nodes = (ScriptedRunner({"": said("")}) for _ in range(3))
    port = CliSlurm(lambda: NOW, cast(Runner, reader), job_writer=cast(Runner, jobs), node_writer=cast(Runner, nodes))
    port.drain_node("gpu1", "x")
    port.hold_job("7")
    port.set_reservation("7", "x")
    port.reserve_nodes("x", ["gpu1"], user="ada", minutes=1)
    port.delete_reservation("x")
    assert (len(reader.asked), len(jobs.asked), len(nodes.asked)) == (0, 4, 1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error creating the reservation: Duplicate reservation name", RefusalKind.EXISTS),
        ("Error creating the reservation: Requested reservation overlaps with another reservation",
         RefusalKind.OVERLAPS),
        ("delete_reservation ReservationName=x: Requested reservation is in use", RefusalKind.IN_USE),
        ("Requested reservation is invalid for job 7", RefusalKind.INVALID_RESERVATION),
        ("Access denied to requested reservation for job 7", RefusalKind.NOT_PERMITTED),
        ("Error creating the reservation: Invalid node name specified", RefusalKind.BAD_NODES),
    ],
)  # fmt: skip
def test_refusals_of_reservations(text: str, kind: RefusalKind) -> None:
    port, _ = slurm({"show reservation": said(err="Reservation x not found", rc=1), "": said(err=text, rc=1)})
    calls: list[Callable[[], None]] = [lambda: port.reserve_nodes("x", ["gpu1"], user="ada", minutes=1)]
    for call in [*calls, lambda: port.delete_reservation("x"), lambda: port.set_reservation("7", "x")]:
        with pytest.raises(SlurmRefused) as refused:
            call()
        assert refused.value.kind is kind


def test_a_name_that_is_taken_is_told_from_nodes_that_are_taken() -> None:
    """Slurm looks at the nodes first: for our own reservation, made a moment ago, it only speaks of an overlap."""
    overlap = said(err="Requested reservation overlaps with another reservation", rc=1)
    port, runner = slurm({"show reservation": said(RESERVATION), "create": overlap})
    with pytest.raises(SlurmRefused) as refused:
        port.reserve_nodes("relume-x", ["gpu1"], user="ada", minutes=1)
    assert refused.value.kind is RefusalKind.EXISTS and len(runner.asked) == 2


@pytest.mark.parametrize(
    ("name", "user"), [("", "ada"), ("a,b", "ada"), ("-x", "ada"), ("x", "a,b"), ("x", ""), ("x\n", "a")]
)
def test_what_is_no_reservation_never_reaches_slurm(name: str, user: str) -> None:
    port, runner = slurm({"": said("")})
    with pytest.raises(ValueError, match="not one"):
        port.reserve_nodes(name, ["gpu1"], user=user, minutes=1)
    with pytest.raises(ValueError, match="no nodes or no time"):
        port.reserve_nodes("x", [], user="ada", minutes=1)
    assert runner.asked == []


def test_one_reservation() -> None:
    port, _ = slurm({"show reservation": said(RESERVATION)})
    found = port.read_reservation("relume-x")
    assert found is not None and found.nodes == ("gpu1", "gpu2")
    port, _ = slurm({"show reservation": said(err="Reservation relume-x not found\n", rc=1)})
    assert port.read_reservation("relume-x") is None
    port, _ = slurm({"show reservation": said(err="error: Socket timed out on send/recv operation", rc=1)})
    with pytest.raises(SlurmUnavailable):
        port.read_reservation("relume-x")


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
