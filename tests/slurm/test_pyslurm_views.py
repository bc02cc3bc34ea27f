"""pyslurm's recorded answers give the facts that Slurm's own commands give of the same things."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.errors import SlurmUnreadable
from controller.slurm import pyslurm_views, pyslurm_worker, unsupported
from controller.slurm.durations import UNKNOWN, UNLIMITED
from controller.slurm.views import HoldKind, JobView, NodeView, PartitionView
from tests.slurm import test_recordings
from tests.slurm.test_recordings import RECORDINGS, text_jobs, text_nodes

pytestmark = pytest.mark.pure

FOLDER = RECORDINGS / "25.11"
SCENES = ("01-idle", "02-running", "03-draining-with-job", "04-requeue-held", "05-released-excluding")
TRAIN = {"train": PartitionView("train", max_time=UNLIMITED)}
# What pyslurm takes apart for good (see `pyslurm_views`).
NOT_SEEN = {"tres", "tres_alloc", "extra"}


def facts(view: JobView | NodeView) -> dict[str, Any]:
    """Where nobody asked for a number of tasks the text has none and pyslurm says 1."""
    found = test_recordings.facts(view, NOT_SEEN)
    return found | ({"num_tasks": view.num_tasks or 1} if isinstance(view, JobView) else {})


def answer(scene: str, what: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / f"{scene}.pyslurm-{what}.json").read_text())
    return found


def jobs(scene: str) -> dict[int, JobView]:
    return {view.raw_id: view for view in pyslurm_views.jobs(answer(scene, "jobs").values(), TRAIN)}


def nodes(scene: str) -> dict[str, NodeView]:
    return pyslurm_views.nodes(answer(scene, "nodes").values())


def test_all_recorded_views_are_there() -> None:
    for what in ("jobs", "nodes"):
        assert sorted(path.name.partition(".")[0] for path in FOLDER.glob(f"*.pyslurm-{what}.json")) == list(SCENES)


@pytest.mark.parametrize("scene", SCENES)
def test_what_the_worker_picks_is_in_every_view(scene: str) -> None:
    for item in answer(scene, "jobs").values():
        assert set(pyslurm_worker.JOB) <= item.keys()
    for item in answer(scene, "nodes").values():
        assert set(pyslurm_worker.NODE) <= item.keys()


@pytest.mark.parametrize("scene", SCENES)
def test_jobs_are_those_of_the_text(scene: str) -> None:
    """pyslurm was recorded after the commands: the ten jobs of the last scene, arrays and a het job among them, do not
    change any more."""
    by_text, seen = text_jobs("25.11", "13-cancelled"), jobs(scene)
    assert len(by_text) == 10
    assert {n: facts(job) for n, job in by_text.items()} == {n: facts(seen[n]) for n in by_text}


def test_nodes_are_those_of_the_text() -> None:
    """gpu3 and gpu4 came back between the two recordings."""
    by_text, seen = text_nodes("25.11", "13-cancelled"), nodes("01-idle")
    for name in ("gpu1", "gpu2"):
        assert facts(by_text[name]) == facts(seen[name])
    assert seen["gpu4"].state.usable and seen["gpu4"].reason == by_text["gpu4"].reason == "Not responding"


def test_a_job_on_its_way_from_one_node_to_others() -> None:
    running, held, released = (jobs(scene)[11] for scene in ("02-running", "04-requeue-held", "05-released-excluding"))
    assert running.state.running and running.nodes == ("gpu1", "gpu2") and running.batch_host == "gpu1"
    assert running.end_time is None and running.time_limit is UNLIMITED and running.run_time == timedelta(seconds=2)
    assert held.hold_kind is HoldKind.REQUEUE_HOLD and held.restarts == 1 and held.nodes == () and held.priority == 0
    assert released.excluded_nodes == ("gpu2",) and not released.held and released.reason == "BeginTime"
    assert released.comment == running.comment == "relume:run=7f3a"


def test_a_draining_node_with_its_reason() -> None:
    node, after = nodes("03-draining-with-job")["gpu2"], nodes("04-requeue-held")["gpu2"]
    assert node.state.draining and node.occupied and not node.state.usable
    assert node.reason == 'Xid 79: "GPU has fallen off the bus", incident=12' and node.reason_user == "root"
    assert node.reason_at is not None and node.gres == "gpu:h100:8" and node.partitions == ("train",)
    assert after.state.drained and not after.occupied


def job(**changes: Any) -> JobView:
    """Job 11, waiting, with these values of pyslurm's."""
    return pyslurm_views.jobs([answer("04-requeue-held", "jobs")["11"] | changes], TRAIN)[0]


def test_task_zero_is_a_task() -> None:
    """pyslurm says None for it, as for a job that is no task."""
    assert job(array_id=9, id=11, array_task_id=None).job_id == "9_0"
    assert job(array_id=9, id=9, array_tasks_waiting="3-4", array_tasks_parallel=2).job_id == "9_[3-4%2]"
    assert job(array_id=9, id=9, array_tasks_waiting="3-4").array_task_id is None
    assert job(array_id=None).array_task_id is None
    never_started = job(array_id=11, id=11, state="CANCELLED")
    assert (never_started.job_id, never_started.array_task_id) == ("11", None)


def test_the_first_component_of_a_het_job() -> None:
    assert (job(heterogeneous_id=11).het_job_id, job(heterogeneous_id=11).het_job_offset) == (11, 0)
    assert job(heterogeneous_id=11, heterogeneous_offset=1).het_job_offset == 1
    assert job().het_job_offset is None


def test_no_limit_or_the_partitions() -> None:
    item = answer("04-requeue-held", "jobs")["11"]
    assert pyslurm_views.limit_is_open(item)
    limited = {"train": PartitionView("train", max_time=timedelta(hours=1))}
    assert pyslurm_views.jobs([item], limited)[0].time_limit is UNKNOWN
    assert pyslurm_views.jobs([item | {"state": "RUNNING"}], limited)[0].time_limit is UNLIMITED
    assert pyslurm_views.jobs([item | {"time_limit": 90}], limited)[0].time_limit == timedelta(minutes=90)
    assert job().time_limit is UNLIMITED


def test_a_dependency_is_put_together_again() -> None:
    parts = {"afterok": ["2(unfulfilled)", 3], "afterany": [4], "singleton": False, "satisfy": "any"}
    assert job(dependencies=parts).dependency == "afterok:2(unfulfilled):3?afterany:4"
    assert job(dependencies=None).dependency == ""


def test_a_state_we_do_not_know_is_kept() -> None:
    odd = job(state="HIBERNATING")
    assert odd.state.base == "UNKNOWN" and odd.state.raw == "HIBERNATING" and not odd.state.terminal


def test_what_relume_does_not_act_upon_is_seen() -> None:
    """`unsupported` looks for these by the names that scontrol gives them."""
    odd = job(burst_buffer="#BB x", container="/images/train", federation_origin="west", submit_line="sbatch x")
    named = {"BurstBuffer": "#BB x", "Container": "/images/train", "FedOrigin": "west", "SubmitLine": "sbatch x"}
    assert odd.extra == named and len(unsupported.of_job(odd, {})) == 3
    assert job().extra == {} and unsupported.of_job(job(), {}) == ()


def test_a_partition() -> None:
    item = {"name": "night", "state": "DOWN", "nodes": "gpu[1-2]", "is_hidden": True, "priority_tier": 3}
    item |= {"max_nodes": "UNLIMITED", "max_time": 90, "preempt_mode": "REQUEUE"}
    view = pyslurm_views.partitions([item])["night"]
    assert view == PartitionView(
        "night", "DOWN", ("gpu1", "gpu2"), True, None, timedelta(minutes=90), preempt_mode="REQUEUE", priority_tier=3
    )
    unlimited = pyslurm_views.partitions([item | {"max_nodes": 4, "max_time": "UNLIMITED"}])["night"]
    assert (unlimited.max_nodes, unlimited.max_time) == (4, UNLIMITED)


def test_what_is_no_view_is_an_error() -> None:
    for build in (lambda item: pyslurm_views.jobs([item], TRAIN), lambda item: pyslurm_views.nodes([item])):
        with pytest.raises(SlurmUnreadable, match="pyslurm"):
            build({"name": "gpu1"})


def test_the_recordings_are_a_folder_of_pyslurms_own_version() -> None:
    assert {item["slurm_version"] for item in answer("01-idle", "nodes").values()} == {"25.11.7"}
    assert Path(FOLDER / "version.txt").read_text().split()[-1] == "25.11.7"
