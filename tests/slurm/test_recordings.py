"""The same scene gives the same facts: in text and in JSON, and in every version that was recorded."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controller.slurm import json_answers, parse, parse_site, versions
from controller.slurm.views import JobView, NodeView

pytestmark = pytest.mark.pure

RECORDINGS = Path(__file__).parent / "recordings"
VERSIONS = ("22.05", "24.11", "25.11", "26.05")
SCENES = sorted(
    (version, path.name.removesuffix(".scontrol-jobs.txt"))
    for version in VERSIONS
    for path in (RECORDINGS / version).glob("*.scontrol-jobs.txt")
)
# Not in both forms, or (num_cpus of a cancelled job, stdout with its pattern) not the same in Slurm's own answers.
TEXT_ONLY = {"run_time", "extra", "stdout", "stderr"}
JSON_OF = {"jobs": ("scontrol-jobs.json", "squeue.json"), "nodes": ("scontrol-nodes.json", "sinfo.json")}


def text_jobs(version: str, scene: str) -> dict[int, JobView]:
    read = parse.parse_jobs((RECORDINGS / version / f"{scene}.scontrol-jobs.txt").read_text(), UTC)
    assert not read.doubtful
    return {job.raw_id: job for job in read.jobs}


def text_nodes(version: str, scene: str) -> dict[str, NodeView]:
    return parse.parse_nodes((RECORDINGS / version / f"{scene}.scontrol-nodes.txt").read_text(), UTC)


def json_text(version: str, scene: str, what: str) -> str:
    candidates = [RECORDINGS / version / f"{scene}.{ending}" for ending in JSON_OF[what]]
    return next(path for path in candidates if path.exists()).read_text()


def facts(view: Any, without: set[str]) -> dict[str, Any]:
    named = {field.name: getattr(view, field.name) for field in fields(view) if field.name not in without}
    return named | {"state": (view.state.base, view.state.flags)}


def test_all_scenes_are_there() -> None:
    assert len(SCENES) >= 13 * len(VERSIONS)


@pytest.mark.parametrize(("version", "scene"), SCENES)
def test_jobs_are_the_same_in_text_and_json(version: str, scene: str) -> None:
    by_json = {job.raw_id: job for job in json_answers.parse_jobs(json_text(version, scene, "jobs"))}
    by_text = text_jobs(version, scene)
    without = TEXT_ONLY | ({"num_cpus"} if scene == "13-cancelled" else set())
    assert {n: facts(job, without) for n, job in by_text.items()} == {
        n: facts(job, without) for n, job in by_json.items()
    }


@pytest.mark.parametrize(("version", "scene"), SCENES)
def test_nodes_are_the_same_in_text_and_json(version: str, scene: str) -> None:
    by_json = json_answers.parse_nodes(json_text(version, scene, "nodes"))
    by_text = text_nodes(version, scene)
    without = {"extra"}
    assert {n: facts(node, without) for n, node in by_text.items()} == {
        n: facts(node, without) for n, node in by_json.items()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_draining_node_with_its_reason(version: str) -> None:
    node = text_nodes(version, "03-draining-with-job")["gpu2"]
    assert node.state.drain and not node.state.usable
    with_job = version != "25.11"  # there the job had been placed on other nodes
    assert node.state.draining is node.occupied is with_job and node.state.drained is not with_job
    assert node.reason == 'Xid 79: "GPU has fallen off the bus", incident=12'
    assert node.reason_user == "root"
    assert node.reason_at is not None and node.reason_at.date() == datetime(2026, 11, 29).date()
    assert node.features == ("h100", "ib") and node.gres == "gpu:h100:8"
    assert "incident" not in node.extra


@pytest.mark.parametrize("version", VERSIONS)
def test_lost_and_downed_nodes(version: str) -> None:
    silent = text_nodes(version, "08-node-not-responding")["gpu4"]
    assert not silent.state.responding and not silent.state.usable
    downed = text_nodes(version, "09-node-down")["gpu3"]
    assert downed.state.down and downed.state.responding
    others = text_nodes(version, "09-node-down")
    assert others["gpu1"].state.usable


@pytest.mark.parametrize("version", VERSIONS)
def test_requeued_then_restarted_elsewhere(version: str) -> None:
    waiting = next(job for job in text_jobs(version, "04-requeued-begin-time").values() if job.name == "llama 7b")
    again = next(job for job in text_jobs(version, "05-restarted-excluding").values() if job.name == "llama 7b")
    assert waiting.state.pending and waiting.reason == "BeginTime" and waiting.nodes == () and not waiting.held
    assert waiting.restarts == again.restarts == 1 and waiting.requeue
    assert waiting.start_time is not None and waiting.submit_time is not None
    assert (waiting.start_time - waiting.submit_time).total_seconds() >= 120
    assert again.state.running and again.nodes == ("gpu3", "gpu4") and again.batch_host == "gpu3"
    assert again.excluded_nodes == ("gpu2",) and again.comment == "holdfast:run=7f3a"
    assert again.tres_per_node == "gres/gpu:8" and again.command == "/home/ada/train.sh"


@pytest.mark.parametrize("version", VERSIONS)
def test_array_and_het_ids_are_slurms_spelling(version: str) -> None:
    array = [job for job in text_jobs(version, "06-array").values() if job.array_job_id is not None]
    parent = array[0].array_job_id
    assert {job.job_id for job in array} == {f"{parent}_1", f"{parent}_2", f"{parent}_[3-4%2]"}
    assert {job.raw_id for job in array if job.array_task_id == 1} == {parent + 1}  # type: ignore[operator]
    het = [job for job in text_jobs(version, "07-het").values() if job.is_het]
    assert [job.het_job_offset for job in het] == [0, 1]
    assert len({job.het_job_id for job in het}) == 1 and het[0].name == "wrap"


@pytest.mark.parametrize("version", VERSIONS)
def test_failures_and_cancellations(version: str) -> None:
    failed = [job for job in text_jobs(version, "12-failed-and-dependency").values() if job.state.base == "FAILED"]
    assert {(job.exit_code, job.exit_signal) for job in failed} == {(3, 0), (0, 9)}
    assert all(job.state.terminal and job.state.blame == "user" for job in failed)
    cancelled = text_jobs(version, "13-cancelled").values()
    assert all(job.state.terminal for job in cancelled)


@pytest.mark.parametrize("version", VERSIONS)
def test_config_names_cluster_and_version(version: str) -> None:
    config = parse_site.parse_config((RECORDINGS / version / "config.txt").read_text())
    assert versions.parse(config["SLURM_VERSION"]).release == version
    assert config["ClusterName"] and int(config["NEXT_JOB_ID"]) > 1
    printed = (RECORDINGS / version / "version.txt").read_text()
    assert versions.parse(printed) == versions.parse(config["SLURM_VERSION"])
    assert versions.parse(printed).scontrol_json is (version != "22.05")


def test_a_json_answer_with_errors_is_no_answer() -> None:
    answer = json.loads(json_text("24.11", "01-idle", "nodes")) | {"errors": [{"error": "boom"}]}
    with pytest.raises(Exception, match="no answer about nodes"):
        json_answers.parse_nodes(json.dumps(answer))
