"""Every task of an array is a training job of its own; a het job is one with components. The job's side of both."""

from pathlib import Path

import pytest

from tests.worker_hooks.controller_double import ControllerDouble
from worker_hooks.agent.attempt import RankPlan, Waiter, find_run_id, lead
from worker_hooks.agent.identity import Identity, IdentityError, UserConfig, load_identity
from worker_hooks.agent.placement import Placement, PlacementError, own_job_id, read_placement
from worker_hooks.agent.registration import Registrar
from worker_hooks.protocol.arrays import parse_tasks
from worker_hooks.protocol.generations import newest
from worker_hooks.protocol.identity import is_run_id, own_run_id, split_run_id, task_run_id
from worker_hooks.training.settings import read_settings

pytestmark = pytest.mark.pure
BASE = "tj-4f2a9c0b11de"
TASK = {"SLURM_JOB_ID": "38", "SLURM_ARRAY_JOB_ID": "36", "SLURM_ARRAY_TASK_ID": "3"}
MARKED = {"RELUME_RUN_ID": f"{BASE}-%a"}


def identity(folder: Path, array: str | None = "1-4%2") -> Identity:
    return Identity(BASE, "token", folder / "identities" / f"{BASE}.json", array=array, user="ada")


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BASE, f"{BASE}-0", f"{BASE}-3", f"{BASE}-4000000"])
def test_run_ids(text: str) -> None:
    assert is_run_id(text) and len(text) <= 32
    base, task = split_run_id(text)
    assert text == (base if task is None else task_run_id(base, task))


@pytest.mark.parametrize("text", ["", f"{BASE}-", f"{BASE}-03", f"{BASE}-%a", f"{BASE}-1-2", f"{BASE}_3", f"{BASE}\n"])
def test_what_is_no_run_id(text: str) -> None:
    assert not is_run_id(text)
    with pytest.raises(ValueError, match="is not of the form"):
        split_run_id(text)


def test_the_mark_stands_for_the_tasks_number_and_nothing_else_does() -> None:
    assert own_run_id(MARKED | TASK) == f"{BASE}-3"
    assert own_run_id({"RELUME_RUN_ID": BASE} | TASK) == BASE, "what is no array, submitted by a task"
    assert own_run_id({"RELUME_RUN_ID": f"{BASE}-3"} | TASK) == f"{BASE}-3"
    assert own_run_id(MARKED) is None
    assert own_run_id(TASK) is None


@pytest.mark.parametrize(
    ("environ", "target"),
    [
        (TASK, "36_3"),
        (TASK | MARKED, "36_3"),
        (TASK | {"SLURM_JOB_ID": "36"}, "36_3"),
        (TASK | {"SLURM_ARRAY_TASK_ID": "0"}, "36_0"),
        ({"SLURM_JOB_ID": "38"}, "38"),
        (TASK | {"RELUME_RUN_ID": BASE, "SLURM_JOB_ID": "46"}, "46"),
        ({"SLURM_JOB_ID": "47", "SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_1": "48"}, "47"),
        ({}, None),
    ],
)
def test_a_job_names_itself_so_that_a_write_hits_nothing_else(environ: dict[str, str], target: str | None) -> None:
    assert own_job_id(environ) == target


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("0-3", (0, 3), (4,)),
        ("1,3,5", (1, 3, 5), (0, 2, 6)),
        ("0-15:4%2", (0, 4, 12), (1, 15, 16)),
        ("1-3,7%1", (1, 7), (4, 8)),
        ("[1-2],[5]", (1, 2, 5), (3,)),
        ("[0-3]%9", (0, 3), (4,)),
        (" 0-3", (0,), (4,)),
        ("+3", (3,), (0,)),
        ("01-03", (1, 3), (0,)),
        ("1-5:9", (1,), (5,)),
        ("1-2%", (1, 2), (3,)),
        ("0-4000000", (4000000,), (4000001,)),
    ],
)
def test_which_tasks_an_array_has(text: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    tasks = parse_tasks(text)
    assert tasks is not None
    assert all(task in tasks for task in inside) and not any(task in tasks for task in outside)


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-5:0", "0x3", "1;2", "%2", "1," * 40000])
def test_a_list_of_tasks_that_is_not_understood_is_no_error(text: str) -> None:
    assert parse_tasks(text) is None


# --- the task's own run -------------------------------------------------------------------------------------------


def test_each_task_has_its_own_run_and_keeps_it_when_requeued(tmp_path: Path) -> None:
    wait = Waiter(0.0, lambda _: True)
    found = set()
    for task in ("1", "2"):
        for restart in ("0", "3"):
            environ = MARKED | TASK | {"SLURM_ARRAY_TASK_ID": task, "SLURM_RESTART_COUNT": restart}
            place = read_placement(environ, "gpu1", "ada", 1)
            found.add((task, find_run_id(environ, identity(tmp_path), tmp_path, place, wait)))
            assert read_settings(environ).run_id == f"{BASE}-{task}", "ranks without an agent find the same"
    assert found == {("1", f"{BASE}-1"), ("2", f"{BASE}-2")}


def test_an_arrays_identity_outside_of_a_task_is_refused(tmp_path: Path) -> None:
    place = read_placement({"SLURM_JOB_ID": "7"}, "gpu1", "ada", 1)
    with pytest.raises(PlacementError, match="no task of one"):
        find_run_id({}, identity(tmp_path), tmp_path, place, Waiter(0.0, lambda _: True))
    with pytest.raises(ValueError, match="is not of the form"):
        read_settings(MARKED)


def test_what_a_task_submits_is_not_that_task(tmp_path: Path) -> None:
    environ = TASK | {"RELUME_RUN_ID": BASE, "SLURM_JOB_ID": "46"}
    place = read_placement(environ, "gpu1", "ada", 1)
    found = find_run_id(environ, identity(tmp_path, array=None), tmp_path, place, Waiter(0.0, lambda _: True))
    assert (found, place.job.slurm_job_id) == (BASE, "46")


def test_tasks_without_wrapper_and_agent_share_no_run(tmp_path: Path) -> None:
    runs = {read_settings(TASK | {"SLURM_ARRAY_TASK_ID": task}, root=tmp_path).run_id for task in "12"}
    assert len(runs) == 2 and {split_run_id(run)[1] for run in runs} == {1, 2}


def test_an_array_is_registered_as_a_whole_by_any_of_its_tasks(tmp_path: Path) -> None:
    controller = ControllerDouble()
    own = identity(tmp_path)
    own.save()
    registrar = Registrar(
        own, controller.url, UserConfig(None, "api"), True, lambda _: None, "36_3", "lab", next_try=0.0
    )
    assert registrar.ready()
    (made,) = controller.registrations
    assert (made["run_id"], made["array"], made["slurm_job_id"]) == (BASE, "1-4%2", "36")
    assert load_identity(own.path).registered
    controller.away()


def test_an_identity_whose_array_is_no_text_is_named(tmp_path: Path) -> None:
    own = identity(tmp_path)
    own.save()
    own.path.write_text(own.path.read_text().replace('"1-4%2"', "14"))
    with pytest.raises(IdentityError, match="its array is no text"):
        load_identity(own.path)


# --- het jobs -----------------------------------------------------------------------------------------------------


def component(nodes: str, step: str = "0", restart: str = "0") -> Placement:
    step_of_it = {"SLURM_STEP_ID": step, "SLURM_STEP_NODELIST": nodes, "SLURM_RESTART_COUNT": restart}
    return read_placement({"SLURM_JOB_ID": "47", "SLURM_HET_SIZE": "2"} | step_of_it, "gpu1", "ada", 1)


def begin(run: Path, place: Placement) -> int:
    plan = RankPlan(local=1, first=0, world=1)
    return lead(run, place, plan, {"address": "127.0.0.1", "port": 1}, Waiter(1.0, lambda _: False)).generation


def test_a_second_world_of_ranks_in_one_het_job_is_refused_by_name(tmp_path: Path) -> None:
    run = tmp_path / BASE
    assert begin(run, component("gpu1")) == 1
    with pytest.raises(PlacementError, match=r"ranks run on gpu1 already.*--het-group=0,1"):
        begin(run, component("gpu[2-3]", step="1"))
    held = newest(run)
    assert held is not None and held.generation == 1, "the ranks that run are not superseded"


def test_a_restart_of_a_het_job_may_run_anywhere(tmp_path: Path) -> None:
    run = tmp_path / BASE
    assert begin(run, component("gpu1")) == 1
    assert begin(run, component("gpu1", step="1")) == 2, "the script starts its ranks again"
    assert begin(run, component("gpu[2-3]", restart="1")) == 3, "Slurm put the job elsewhere"
