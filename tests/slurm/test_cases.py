"""The given cases about reading Slurm, one test per case, named by its id (`cases.jsonl`). Those about other things are
in `test_cases_elsewhere`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmUnavailable
from controller.slurm import durations, hostlist, jobids, json_answers, parse, reasons, states
from controller.slurm.building import words
from controller.slurm.cli import CliSlurm
from controller.slurm.refusals import error_from
from controller.slurm.runner import slurm_env
from controller.slurm.views import HoldKind
from tests.slurm.scripted import NODE, ScriptedRunner, job_record, queue, said, whole

pytestmark = pytest.mark.pure

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in map(json.loads, (Path(__file__).parent / "cases.jsonl").read_text().splitlines())
}


def given(case_id: str) -> tuple[Any, Any]:
    return CASES[case_id]["input"], CASES[case_id]["expected"]


def test_S01() -> None:
    asked, expected = given("S01")
    assert hostlist.expand(asked["hostlist"]) == expected["expand"]


@pytest.mark.parametrize("case_id", ["S02", "S04"])
def test_S02_S04(case_id: str) -> None:
    asked, expected = given(case_id)
    assert [hostlist.expand(text) for text in asked["hostlists"]] == expected["expand"]


def test_S07() -> None:
    asked, expected = given("S07")
    for text, outcome in zip(asked["hostlists"], expected["expect"], strict=True):
        if outcome == "empty":
            assert hostlist.expand(text) == []
        else:
            with pytest.raises(ValueError, match="host list"):
                hostlist.expand(text)


def test_S08() -> None:
    asked, expected = given("S08")
    for text, facts in zip(asked["states"], expected["parsed"], strict=True):
        state = states.parse_node(text)
        assert {name: getattr(state, name) for name in facts} == facts


@pytest.mark.parametrize("shape", ["old", "new"])
def test_S12(shape: str) -> None:
    asked, _ = given("S12")
    fields = {"name": "x", "partition": "train", "excluded_nodes": "", "required_nodes": "", "batch_flag": True}
    fields |= {"requeue": True, "restart_cnt": 0, "submit_time": 1795963735, "job_state": "RUNNING"}
    answer = {"jobs": [fields | job for job in asked[shape]["jobs"]]}
    jobs = {job.raw_id: job for job in json_answers.parse_jobs(json.dumps(answer))}
    assert jobs[9].nodes == ("gn1", "gn2")
    if shape == "new":
        assert not jobs[3].state.live


def test_S13() -> None:
    asked, expected = given("S13")
    for text, wanted in zip(asked["values"], expected["seconds"], strict=True):
        found = durations.parse(text)
        if wanted == "unlimited":
            assert found is durations.UNLIMITED
        elif isinstance(wanted, str):
            assert found is durations.UNKNOWN
        else:
            assert found == timedelta(seconds=wanted)


def test_S15() -> None:
    asked, expected = given("S15")
    for text, wanted in zip(asked["states"], expected["map"], strict=True):
        state = states.parse_job(text)
        if wanted == "held":
            assert state.held and state.live
        elif wanted == "live":
            assert state.live and not state.terminal
        elif wanted.startswith("terminal:"):
            assert state.terminal and state.blame == wanted.removeprefix("terminal:")
        else:
            assert state.base == wanted.partition("(")[0] and state.terminal
    assert states.parse_job("CANCELLED by 1001").cancelled_by == 1001


def test_S19() -> None:
    asked, expected = given("S19")
    renamed = {"array": "job", "het": "job"}
    for text, wanted in zip(asked["ids"], expected["parsed"], strict=True):
        ref = jobids.parse(text)
        facts = {renamed.get(key, key): value for key, value in wanted.items()}
        assert {key: getattr(ref, key) for key in facts} == facts
        assert all(getattr(ref, key) is None for key in ("task", "tasks", "offset", "step") if key not in facts)
    for text in ("", "0x7", "12a", "123_", "_4", "123_[", "job 5", "-1", "123.", "1 2"):
        with pytest.raises(ValueError, match="not a Slurm job id"):
            jobids.parse(text)


def test_S20() -> None:
    asked, expected = given("S20")
    assert jobids.own_target(asked["env"]) == expected["requeue_target"]
    assert jobids.own_target({"SLURM_JOB_ID": "38"}) == "38"


def test_S27() -> None:
    asked, _ = given("S27")
    bracketed = asked["squeue"][asked["squeue"].index("(") :]
    facts = dict(word.split("=") for word in asked["scontrol"].split())
    assert reasons.normalise(bracketed) == facts["Reason"]
    assert reasons.hold_kind(bracketed) is reasons.hold_kind(facts["Reason"]) is HoldKind.LAUNCH_FAILED
    assert jobids.parse(asked["squeue"].split()[0]).task == 36
    limit = reasons.hold_kind("(launch failure limit exceeded requeued held)")
    assert limit is HoldKind.REQUEUE_LIMIT


def test_S28() -> None:
    asked, _ = given("S28")
    ordinary, down, unnamed = (reasons.blocked_by(text) for text in asked["reasons"])
    assert ordinary == reasons.Blocked(False)
    assert down == reasons.Blocked("if-required", ("gn04", "gn07"))
    assert unnamed == reasons.Blocked("unknown")


def test_S30() -> None:
    asked, _ = given("S30")
    for call in asked["calls"][:2]:
        runner = ScriptedRunner({"show config": said(err=call["stderr"], rc=call["rc"])})
        with pytest.raises(SlurmUnavailable) as away:
            CliSlurm(clock=lambda: datetime.now(UTC), reader=runner).read_cluster()  # type: ignore[arg-type]
        assert away.value.retry and not away.value.outcome_unknown
        assert call["stderr"] in away.value.text


def test_S32() -> None:
    asked, _ = given("S32")
    kinds = [error_from(text, call="scontrol requeue 7", write=True) for text in asked["stderr"]]
    assert [error.kind for error in kinds if isinstance(error, SlurmRefused)] == [
        RefusalKind.ALREADY_PENDING,
        RefusalKind.NOT_REQUEUEABLE,
        RefusalKind.INVALID_JOB,
        RefusalKind.BUSY,
    ]
    assert [error.retry for error in kinds] == [False, False, False, True]


def test_S33() -> None:
    asked, expected = given("S33")
    facts = dict(word.split("=") for word in asked["scontrol"].split())
    record = job_record(state=facts["JobState"]).replace("Restarts=0", f"Restarts={facts['Restarts']}")
    (job,) = parse.parse_jobs(record).jobs
    assert job.restarts == expected["attempts_before"]
    assert job.requeue is True and job.state.terminal and job.state.blame == "none"


def test_S34() -> None:
    asked, expected = given("S34")
    given_fields = [line.strip() for line in asked["scontrol_node"]]
    state, reason, extra, system = given_fields
    record = NODE.rstrip().replace("State=IDLE", state).replace("OS=Linux 6.1 #1 SMP", system)
    (node,) = parse.parse_nodes(f"{record} {reason} {extra}\n", UTC).values()
    assert node.state.drained
    assert (node.reason, node.reason_user) == (expected["reason"], expected["reason_user"])
    assert node.reason_at == datetime.fromisoformat(expected["reason_time"]).replace(tzinfo=UTC)
    assert f"Extra={node.extra['Extra']}" == extra and f"OS={node.os}" == system
    assert not {"instance", "job", "message"} & node.extra.keys()


def test_S37() -> None:
    asked, _ = given("S37")
    assert words(asked["squeue"][1].partition("|")[0]) == ("a100", "cpu")
    assert words(asked["squeue"][2].partition("|")[0]) == ("compute",)
    (job,) = parse.parse_jobs(job_record().replace("Partition=train", "Partition=a100,cpu")).jobs
    assert job.partition == ("a100", "cpu")


def test_S38() -> None:
    asked, _ = given("S38")
    env = slurm_env({**asked["env"], "SLURM_CONF": "/etc/slurm.conf", "SCONTROL_ALL": "0", "PATH": "/bin"})
    wanted = {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    assert env == wanted | {"SLURM_BITSTR_LEN": "0"}


def test_answers_of_an_idle_cluster_are_complete() -> None:
    """The counterpart of S30: an empty queue is an answer when Slurm says so, and only then."""
    runner = ScriptedRunner({**whole(), "--Format=": queue()})
    view = CliSlurm(clock=lambda: datetime.now(UTC), reader=runner).read_cluster()  # type: ignore[arg-type]
    assert view.jobs == {} and list(view.nodes) == ["gpu1"]
