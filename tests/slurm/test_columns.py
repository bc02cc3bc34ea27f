"""squeue's table: whatever its owner wrote into a job, the facts of every job stay what Slurm says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import SlurmUnreadable
from controller.slurm import columns
from controller.slurm.columns import Table
from controller.slurm.views import HoldKind, JobView
from tests.slurm.scripted import QUIET_JOB, queue

pytestmark = pytest.mark.pure

OLDER, NEWER = Table("a1b2c3", has_excluded=False), Table("a1b2c3", has_excluded=True)


def printed(table: Table, *jobs: Mapping[str, str]) -> str:
    return queue(*jobs)(table.question()).out


def read(*jobs: Mapping[str, str], table: Table = NEWER) -> list[JobView]:
    excluded = {} if table.has_excluded else columns.exclusions(queue(*jobs)(columns.exclusions_question()).out)
    return [columns.view_of(record) for record in table.records(printed(table, *jobs), excluded)]


@pytest.mark.parametrize("table", [OLDER, NEWER])
def test_one_job(table: Table) -> None:
    (job,) = read({"ExcNodes": "gpu[7,9]", "ReqNodes": "gpu1"}, table=table)
    assert (job.job_id, job.raw_id, job.array_job_id, job.het_job_id) == ("7", 7, None, None)
    assert (job.user, job.uid, job.name, job.state.base) == ("ada", 1000, "llama", "RUNNING")
    assert job.nodes == ("gpu1", "gpu2") and job.batch_host == "gpu1" and job.requeue and job.batch
    assert job.excluded_nodes == ("gpu7", "gpu9") and job.required_nodes == ("gpu1",)
    assert job.submit_time == datetime.fromtimestamp(1795963735, UTC) and job.time_limit == timedelta(days=1)
    assert job.tres_per_node == "gres/gpu:8" and (job.num_nodes, job.num_tasks, job.num_cpus) == (2, 2, 2)
    assert job.command == "/home/ada/train.sh" and job.comment == "" and job.account == "" and job.extra == {}
    assert job.run_time is None


def test_tasks_components_and_holds() -> None:
    waiting = {"JobID": "20", "ArrayJobID": "20", "ArrayTaskID": "3-4%2", "State": "PENDING", "NodeList": ""}
    waiting |= {"Reason": "launch failed requeued held", "PriorityLong": "0", "EndTime": "N/A", "StartTime": "N/A"}
    task = {"JobID": "21", "ArrayJobID": "20", "ArrayTaskID": "1"}
    component = {"JobID": "31", "ArrayJobID": "31", "HetJobID": "30", "HetJobOffset": "1"}
    first, second, third = read(waiting, task, component)
    assert (first.job_id, first.array_tasks, first.nodes) == ("20_[3-4%2]", "3-4%2", ())
    assert (first.reason, first.hold_kind) == ("launch_failed_requeued_held", HoldKind.LAUNCH_FAILED)
    assert (second.job_id, second.raw_id, second.array_task_id) == ("20_1", 21, 1)
    assert (third.job_id, third.het_job_id, third.het_job_offset) == ("31", 30, 1)


def test_what_makes_a_job_one_that_is_only_watched() -> None:
    odd, plain = read({"BurstBuffer": "#DW jobdw", "Container": "/img", "Origin": "east"}, {"JobID": "8"})
    assert odd.extra == {"BurstBuffer": "#DW jobdw", "Container": "/img", "FedOrigin": "east"}
    assert plain.extra == {}


@pytest.mark.parametrize(
    ("printed_code", "code"),
    [("0", (0, 0)), ("768", (3, 0)), ("9", (0, 9)), ("139", (0, 11)), ("4294967294", (0, 0)), ("3:0", (3, 0)),
     ("0:15", (0, 15))],
)  # fmt: skip
def test_exit_codes_in_both_forms(printed_code: str, code: tuple[int, int]) -> None:
    (job,) = read({"exit_code": printed_code})
    assert (job.exit_code, job.exit_signal) == code


TEXTS = st.text(max_size=60) | st.text(alphabet="a1b2c3;.\x1f\n 78N/A", max_size=40)


@given(TEXTS, TEXTS, TEXTS)
def test_no_text_changes_another_fact(name: str, comment: str, account: str) -> None:
    """The mark of the call is not in the text: it was drawn after the text had been written."""
    table = Table("0f0f0f0f", has_excluded=True)
    jobs = read({"Name": name, "Comment": comment, "Account": account}, {"JobID": "8"}, table=table)
    assert [(job.raw_id, job.user, job.state.base, job.nodes) for job in jobs] == [
        (7, "ada", "RUNNING", ("gpu1", "gpu2")),
        (8, "ada", "RUNNING", ("gpu1", "gpu2")),
    ]
    assert jobs[0].name == name


def test_a_whole_record_in_a_name_is_a_name() -> None:
    """Even one that imitates the marks of an earlier call, with every column in its place."""
    earlier = Table("000000", has_excluded=True)
    forged = printed(earlier, {"JobID": "8", "UserName": "root"})
    (job,) = read({"Name": forged})
    assert job.name == forged and job.user == "ada"


def test_a_record_that_knew_the_mark_is_no_answer() -> None:
    """It would have to be written between the start of squeue and slurmctld's answer. Then the job is there twice."""
    inner = printed(NEWER, {"JobID": "8"}).partition("JOBID")[2]
    with pytest.raises(SlurmUnreadable):
        read({"Name": f"x{inner}"}, {"JobID": "8"})


@pytest.mark.parametrize("cut", [0, 1, 40, -1, -30])
def test_half_an_answer_is_no_answer(cut: int) -> None:
    with pytest.raises(SlurmUnreadable):
        NEWER.records(printed(NEWER, {})[:cut], {})


def test_an_empty_queue_is_its_heading() -> None:
    assert read() == [] and columns.exclusions("JOBID\x1fEXC_NODES\n") == {}
    for nothing in ("", "\n", "slurm_load_jobs error"):
        with pytest.raises(SlurmUnreadable, match="table"):
            NEWER.records(nothing, {})
        with pytest.raises(SlurmUnreadable, match="table"):
            columns.exclusions(nothing)


@pytest.mark.parametrize("column", ["RestartCnt", "UserName", "tres-per-node"])
def test_a_column_that_this_squeue_does_not_know_is_noticed(column: str) -> None:
    """squeue leaves it out and goes on, with a complaint and exit code 0."""
    argv = list(NEWER.question())
    wanted = argv[-1].removeprefix("--Format=").split(",")
    argv[-1] = "--Format=" + ",".join(one for one in wanted if not one.startswith(f"{column}:"))
    with pytest.raises(SlurmUnreadable):
        NEWER.records(queue({})(argv).out, {})


@pytest.mark.parametrize(
    ("column", "bad"), [("SubmitTime", "2026-11-29T14:48:55"), ("NodeList", "gpu[1-"), ("UserID", "")]
)
def test_a_value_that_cannot_be_read_is_no_answer(column: str, bad: str) -> None:
    with pytest.raises(SlurmUnreadable):
        read({column: bad})


def test_the_question_names_all_columns_once_and_no_suffix_begins_with_a_digit() -> None:
    """squeue would take a digit there for the width of the column, and cut the value off."""
    wanted = [column.partition(":") for column in OLDER.question(7)[-1].removeprefix("--Format=").split(",")]
    assert {name for name, _, _ in wanted} == QUIET_JOB.keys() - {"ExcNodes"} and len(wanted) == len(QUIET_JOB) - 1
    assert all(end and not end[0].isdigit() and end[0] != "." for _, _, end in wanted)
    assert "--jobs=7" in OLDER.question(7) and "--jobs=7" in columns.exclusions_question(7)
