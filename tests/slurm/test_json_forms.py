"""The forms that DataParserParameters gives the same answer: whole numbers, objects, null, words; texts or lists."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from controller.errors import SlurmUnreadable
from controller.slurm import json_answers
from controller.slurm.durations import UNLIMITED
from controller.slurm.views import JobView

pytestmark = pytest.mark.pure

JOB: dict[str, Any] = {
    "job_id": 7, "name": "x", "partition": "train", "nodes": "gpu[1-2]", "excluded_nodes": "", "required_nodes": "",
    "batch_flag": True, "requeue": True, "restart_cnt": 2, "submit_time": 1795963735, "end_time": 1796050136,
    "job_state": ["RUNNING"], "time_limit": 90, "priority": 10, "exit_code": 0, "node_count": 2, "features": "h100",
}  # fmt: skip


def read(**difference: Any) -> JobView:
    (job,) = json_answers.parse_jobs(json.dumps({"jobs": [JOB | difference], "errors": [], "warnings": []}))
    return job


def number(value: int | None, *, infinite: bool = False) -> dict[str, Any]:
    return {"set": value is not None or infinite, "infinite": infinite, "number": value or 0}


NUMBERS = ("job_id", "restart_cnt", "submit_time", "end_time", "time_limit", "priority", "node_count")


@pytest.mark.parametrize("form", ["object", "text", "float"])
def test_numbers_in_every_form(form: str) -> None:
    forms = {"object": number, "text": str, "float": float}
    assert read(**{key: forms[form](JOB[key]) for key in NUMBERS}) == read()
    assert read().time_limit == timedelta(minutes=90) and read().restarts == 2 and read().end_time is not None


@pytest.mark.parametrize("endless", ["Infinity", float("inf"), None, number(None, infinite=True)])
def test_no_limit_in_every_form(endless: object) -> None:
    """json.dumps writes a bare Infinity, as a serializer without `+complex` may."""
    job = read(time_limit=endless)
    assert job.time_limit is UNLIMITED and job.end_time is None  # Slurm invents one, a year from its start
    assert read(time_limit=endless, job_state=["COMPLETED"]).end_time is not None


@pytest.mark.parametrize("nothing", [None, "NaN", float("nan"), number(None)])
def test_no_number_in_every_form(nothing: object) -> None:
    assert read(priority=nothing).priority is None and read(node_count=nothing).num_nodes == 0
    with pytest.raises(SlurmUnreadable):
        read(restart_cnt=nothing)


@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0), (number(1), number(0)), ("1", "0")])
def test_flags_in_every_form(yes: object, no: object) -> None:
    assert read(batch_flag=yes, requeue=yes).requeue and read(batch_flag=yes).batch
    assert not read(requeue=no).requeue and not read(batch_flag=no).batch


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (768, (3, 0)),
        (9, (0, 9)),
        (4294967294, (0, 0)),
        (number(768), (3, 0)),
        ({"status": ["ERROR"], "return_code": number(3), "signal": {"id": number(None), "name": ""}}, (3, 0)),
        ({"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}}, (0, 9)),
        ({"status": ["SIGNALED"], "return_code": 0, "signal": 9}, (0, 9)),
    ],
)
def test_exit_codes_in_every_form(status: object, code: tuple[int, int]) -> None:
    job = read(exit_code=status)
    assert (job.exit_code, job.exit_signal) == code


@pytest.mark.parametrize("state", ["RUNNING", "running", ["RUNNING"], "R"])
def test_states_in_every_form(state: object) -> None:
    assert read(job_state=state).state.running
    kept = read(job_state=["RUNNING", "SOMETHING_NEW"]).state
    assert kept.base == "RUNNING" and kept.flags == {"SOMETHING_NEW"}


def test_lists_where_others_write_texts() -> None:
    as_lists = read(features=["h100", "ib"], partition=["a100", "cpu"], excluded_nodes=["gpu3", "gpu4"])
    as_texts = read(features="h100,ib", partition="a100,cpu", excluded_nodes="gpu[3-4]")
    assert as_lists == as_texts and as_texts.partition == ("a100", "cpu")


def test_a_field_never_heard_of_changes_nothing() -> None:
    assert read(novelty={"deep": [1, {"set": True}]}) == read()
