"""Which GPUs an agent says that its job step may use: recorded lists, the ways in which Slurm hands GPUs out, a command
that hangs. None of it on a GPU."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.agent_stage import Stage, alive, stage, until
from worker_hooks.agent.gpus import NvidiaSmi, held, look, look_aside, named, read_list

pytestmark = pytest.mark.pure
UUIDS = [f"GPU-{n}1111111-aaaa-bbbb-cccc-00000000000{n}" for n in range(8)]
MIGS = [f"MIG-{n}2222222-aaaa-bbbb-cccc-00000000000{n}" for n in range(3)]
OLD = [f"MIG-{UUIDS[0]}/{n}/0" for n in (1, 5)]


def lines(uuids: list[str], model: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    return [f"GPU {index}: {model} (UUID: {uuid})" for index, uuid in enumerate(uuids)]


def instances(names: list[str]) -> list[str]:
    return [f"  MIG 3g.40gb     Device  {index}: (UUID: {name})" for index, name in enumerate(names)]


NODE = "\n".join(lines(UUIDS)) + "\n"
SHARE = "\n".join(lines(UUIDS[4:6])) + "\n"  # what a cgroup leaves of it
DIVIDED = "\n".join([lines(UUIDS)[0], *instances(MIGS[:2]), lines(UUIDS)[1], *instances(MIGS[2:])]) + "\n"
OLD_DRIVER = "\n".join([lines(UUIDS)[0], *instances(OLD), lines(UUIDS)[1]])
MIXED = "\n".join([*lines(UUIDS[:1], "NVIDIA A40"), *lines(UUIDS[:2])[1:]])


def test_the_list_is_read_with_its_instances() -> None:
    assert [gpu.uuid for gpu in read_list(NODE)] == UUIDS
    first, second = read_list(DIVIDED)
    assert (first.instances, second.instances) == (tuple(MIGS[:2]), (MIGS[2],))
    assert read_list(OLD_DRIVER)[0].instances == tuple(OLD) and read_list(OLD_DRIVER)[1].instances == ()
    assert read_list(MIXED)[0].model == "NVIDIA A40"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices found.\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        NODE.replace("GPU 3: NVIDIA H100 80GB HBM3", "Unable to determine the device handle for gpu 0000:4E:00.0"),
        NODE.replace("GPU 0", "GPU 1"),
        NODE.replace(UUIDS[2], "GPU-????????"),
        instances(MIGS)[0] + "\n" + NODE,
    ],
)
def test_a_list_with_a_line_that_is_not_understood_is_unknown(text: str) -> None:
    assert read_list(text) == ()


@pytest.mark.parametrize(
    ("environ", "text", "found"),
    [
        # A cgroup shows the share only, and CUDA counts from 0 in it, whatever numbers the node gives them.
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, SHARE, UUIDS[4:6]),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "4,5"}, SHARE, UUIDS[5:6]),
        ({"SLURM_STEP_GPUS": "4,5"}, SHARE, UUIDS[4:6]),
        ({"SLURM_JOB_GPUS": "4,5"}, SHARE, UUIDS[4:6]),
        ({"GPU_DEVICE_ORDINAL": "0,1"}, SHARE, UUIDS[4:6]),
        ({"SLURM_JOB_GPUS": "2,3,4,5"}, SHARE, UUIDS[4:6]),  # the step has less than the job
        # Nothing is hidden: the numbers are those of the node.
        ({"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_STEP_GPUS": "4,5", "SLURM_JOB_GPUS": "0,1"}, NODE, UUIDS[4:6]),
        ({"CUDA_VISIBLE_DEVICES": " 5", "SLURM_JOB_GPUS": "4,5"}, NODE, UUIDS[5:6]),
        ({"CUDA_VISIBLE_DEVICES": "4, 5"}, NODE, UUIDS[4:6]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7"}, NODE, UUIDS),
        # Names.
        ({"CUDA_VISIBLE_DEVICES": f"{UUIDS[5]},{UUIDS[2]}", "SLURM_STEP_GPUS": "0,1"}, NODE, [UUIDS[5], UUIDS[2]]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5111"}, NODE, [UUIDS[5]]),
        # An instance with the GPU that it is part of.
        ({"CUDA_VISIBLE_DEVICES": MIGS[1]}, DIVIDED, [UUIDS[0], MIGS[1]]),
        ({"CUDA_VISIBLE_DEVICES": f"{MIGS[0]},{MIGS[1]}"}, DIVIDED, [UUIDS[0], *MIGS[:2]]),
        ({"CUDA_VISIBLE_DEVICES": f"{MIGS[1]},{UUIDS[1]}"}, DIVIDED, [UUIDS[0], MIGS[1], UUIDS[1]]),
        ({"CUDA_VISIBLE_DEVICES": OLD[1]}, OLD_DRIVER, [OLD[1]]),
        # Two models: which is first is CUDA's own order, unless it is told to count as the list does.
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED, UUIDS[1:2]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, MIXED, UUIDS[:2]),
    ],
)
def test_what_the_step_may_use(environ: dict[str, str], text: str, found: list[str]) -> None:
    assert held(environ, read_list(text)) == tuple(found)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, NODE),
        ({}, SHARE),
        ({"CUDA_VISIBLE_DEVICES": ""}, NODE),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, NODE),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, NODE),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, NODE),
        ({"CUDA_VISIBLE_DEVICES": "0,"}, NODE),
        ({"CUDA_VISIBLE_DEVICES": f"0,{UUIDS[1]}"}, NODE),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_STEP_GPUS": "4,5"}, SHARE),  # no such numbers in what is seen
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, NODE),  # as in a cgroup, and all is seen
        ({"SLURM_STEP_GPUS": "4,5"}, NODE),  # nothing keeps the process from the others
        ({"CUDA_VISIBLE_DEVICES": "8"}, NODE),
        ({"CUDA_VISIBLE_DEVICES": "1"}, MIXED),
        ({"CUDA_VISIBLE_DEVICES": "0"}, DIVIDED),
        ({"SLURM_STEP_GPUS": "0,1,2"}, DIVIDED),
        ({"CUDA_VISIBLE_DEVICES": "MIG-"}, DIVIDED),  # three of them begin so
        ({"CUDA_VISIBLE_DEVICES": MIGS[0]}, SHARE),  # part of which GPU?
        ({"CUDA_VISIBLE_DEVICES": f"{UUIDS[0]},{MIGS[0]}"}, SHARE),
        ({"CUDA_VISIBLE_DEVICES": "GPU-9"}, NODE),
        ({"SLURM_STEP_GPUS": "mps:1"}, SHARE),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ""),
    ],
)
def test_what_is_unclear_is_unknown(environ: dict[str, str], text: str) -> None:
    assert held(environ, read_list(text)) == ()


def test_complete_names_need_no_command() -> None:
    def ask() -> str | None:
        raise AssertionError("nothing needs to be asked")

    assert look({"CUDA_VISIBLE_DEVICES": f"{UUIDS[0]},{OLD[0]}"}, ask) == (UUIDS[0], OLD[0])
    assert look({"PATH": "/bin", "SLURM_STEP_GPUS": ""}, ask) == (), "nobody speaks of GPUs"
    assert named({"CUDA_VISIBLE_DEVICES": MIGS[0]}) == () == named({"CUDA_VISIBLE_DEVICES": "0"})


def test_a_command_that_fails_is_asked_again_a_few_times() -> None:
    environ: dict[str, str] = {"SLURM_STEP_GPUS": "4,5"}
    pauses: list[float] = []
    asked: list[str] = []

    def ask() -> str | None:
        asked.append("nvidia-smi -L")
        return said

    answers: Iterator[str | None] = iter([None, "Unable to determine the device handle\n", SHARE])
    assert look(environ, lambda: next(answers), pauses.append) == tuple(UUIDS[4:6]) and len(pauses) == 2
    said: str | None = None
    assert look(environ, ask, pauses.append) == () and len(asked) == 3
    asked.clear()
    said = NODE
    assert look({"CUDA_VISIBLE_DEVICES": "9"}, ask, pauses.append) == ()
    assert len(asked) == 1, "the answer is known; that it does not fit will not change"


# --- the command --------------------------------------------------------------------------------------------------


def command(folder: Path, script: str) -> dict[str, str]:
    """An `nvidia-smi` of our own in front of PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def saying(folder: Path, text: str) -> str:
    (folder / "list").write_text(text)
    return f'[ "$*" = -L ] && cat {folder}/list'


def test_the_command_is_run_and_read(tmp_path: Path) -> None:
    assert NvidiaSmi(command(tmp_path / "bin", saying(tmp_path, SHARE)))() == SHARE


@pytest.mark.parametrize("script", ["exit 9", "echo GPU 0; exit 1", "head -c 300000 /dev/zero"])
def test_one_that_fails_or_says_too_much_says_nothing(tmp_path: Path, script: str) -> None:
    assert NvidiaSmi(command(tmp_path / "bin", script))() is None


def test_without_the_command_nothing_is_known(tmp_path: Path) -> None:
    assert NvidiaSmi({"PATH": str(tmp_path)})() is None


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    environ = command(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    assert NvidiaSmi(environ, limit_s=1.0)() is None
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_that_cannot_be_ended_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_hooks.agent.gpus.KILLED_S", 0.1)
    monkeypatch.setattr("worker_hooks.agent.gpus.subprocess.Popen.kill", lambda self: None)
    smi = NvidiaSmi(command(tmp_path / "bin", f"echo x >> {tmp_path}/starts; exec sleep 600"), limit_s=1.0)
    assert smi() is None and smi() is None
    assert (tmp_path / "starts").read_text() == "x\n"
    assert smi._process is not None
    smi._process.terminate()
    smi._process.wait(10)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_none_outlives_the_agents_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """One that an ending step leaves behind, stuck in the driver, makes Slurm drain the node ("Kill task failed")."""
    smi = NvidiaSmi(command(tmp_path / "bin", f"sleep 2; echo x > {tmp_path}/lived"), limit_s=30.0)
    popen = subprocess.Popen

    def start(*args: Any, **keys: Any) -> Any:
        smi.end()
        return popen(*args, **keys)

    if when == "before":
        smi.end()
    else:
        monkeypatch.setattr("worker_hooks.agent.gpus.subprocess.Popen", start)
    assert smi() is None
    assert smi._process is None or smi._process.returncode == -9
    assert not (tmp_path / "lived").exists()


def test_nobody_waits_for_it() -> None:
    kept: list[tuple[str, ...]] = []
    may_answer: list[bool] = []

    def ask() -> str | None:
        until(lambda: may_answer)
        return SHARE

    look_aside({"SLURM_STEP_GPUS": "4,5"}, kept.append, ask)
    assert kept == []
    may_answer.append(True)
    assert until(lambda: kept) == [tuple(UUIDS[4:6])]


# --- the agent ----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def told(place: Stage) -> list[str]:
    return list(place.controller.messages[-1]["agent"].get("gpus", ())) if place.controller.messages else []


def test_an_agent_tells_the_gpus_of_its_step(place: Stage, tmp_path: Path) -> None:
    bin_ = command(tmp_path / "bin", saying(tmp_path, SHARE))
    environ = {**place.environ(), **bin_, "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}
    place.start("--ranks", "1", environ=environ, steps=10**6)
    until(lambda: told(place) == UUIDS[4:6])


def test_a_hanging_driver_delays_nothing_and_is_not_left_behind(place: Stage, tmp_path: Path) -> None:
    bin_ = command(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    agent = place.start("--ranks", "1", environ={**place.environ(), **bin_, "CUDA_VISIBLE_DEVICES": "0"}, steps=100)
    code, _ = place.end(agent)
    assert code == 0 and told(place) == []
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid))
