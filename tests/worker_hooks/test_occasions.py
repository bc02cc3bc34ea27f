"""When a checkpoint is taken: real ranks are asked by a signal, by the page, by a stop, and by the interval."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker_hooks.conftest import Ranks, World
from worker_hooks.protocol.generations import accepted_folders, missing_ranks
from worker_hooks.training.occasions import occasions
from worker_hooks.training.occasions.occasions import AUTO, FIRST_INTERVAL_S, Occasions, Warned

pytestmark = pytest.mark.torch
LONG = {"total": 100_000, "epochs": 100_000, "every": 0, "sleep_s": 0.01}


def until(true: Callable[[], Any], ranks: Ranks, patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, ranks.text()
        time.sleep(0.02)


def saved(world: World) -> list[str]:
    return accepted_folders(world.run) if world.run.exists() else []


def started(world: World, run_dir: Path, ranks: int) -> Ranks:
    found = world.tiny(ranks, env={"RELUME_RUN_DIR": str(run_dir)}, **LONG)
    until(lambda: all("first_step" in names(world, run_dir, rank) for rank in range(ranks)), found)
    return found


def names(world: World, run_dir: Path, rank: int) -> list[str]:
    return (
        [e["name"] for e in world.events(run_dir, rank) if "name" in e]
        if (run_dir / f"events-{rank}.jsonl").exists()
        else []
    )


def tell(run_dir: Path, **control: Any) -> None:
    (run_dir / "new").write_text(json.dumps({"stop": None, "superseded": False, **control}))
    (run_dir / "new").rename(run_dir / "control.json")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_to_one_rank_is_one_save_of_all_and_training_goes_on(world: World, ranks: int) -> None:
    run_dir = world.new_run_dir("node", ranks)
    running = started(world, run_dir, ranks)
    os.kill(running.pids[-1], signal.SIGUSR2)
    until(lambda: saved(world), running)
    (folder,) = saved(world)
    assert missing_ranks(world.run / folder, ranks) == []
    told = [e for rank in range(ranks) for e in world.events(run_dir, rank) if "name" in e]
    begun = {(e["data"]["why"], f"step-{e['data']['step']:08d}.g1") for e in told if e["name"] == "save_begun"}
    assert begun == {("the signal before the end", folder)}
    assert [(e["rank"], e["data"]["kind"]) for e in told if e["name"] == "save_asked"] == [(ranks - 1, "signal")]
    os.kill(running.pids[-1], signal.SIGUSR2)
    until(lambda: len(saved(world)) == 2, running)
    tell(run_dir, stop="enough")
    assert running.wait() == [0] * ranks, running.text()


def test_save_now_is_carried_out_once_for_each_request(world: World) -> None:
    run_dir = world.new_run_dir("node", 2)
    running = started(world, run_dir, 2)
    for number in (1, 2):
        tell(run_dir, save=f"request {number}")
        until(lambda count=number: len(saved(world)) == count, running)
    time.sleep(2.0)
    assert len(saved(world)) == 2
    tell(run_dir, save="request 2", stop="enough")
    assert running.wait() == [0, 0], running.text()


def test_a_stop_saves_and_ends_all_ranks_at_the_same_step(world: World) -> None:
    run_dir = world.new_run_dir("node", 2)
    running = started(world, run_dir, 2)
    tell(run_dir, stop="maintenance")
    assert running.wait() == [0, 0], running.text()
    (folder,) = saved(world)
    ends = [json.loads((world.folder / f"out.{rank}.json").read_text()) for rank in range(2)]
    assert {f"step-{end['steps']:08d}.g1" for end in ends} == {folder}


def test_a_signal_that_somebody_else_handles_is_left_to_them() -> None:
    def theirs(*_: Any) -> None: ...

    before = signal.signal(occasions.WARNING, theirs)
    try:
        warned = Warned()
        warned.listen()
        warned.leave()
        assert signal.getsignal(occasions.WARNING) is theirs
    finally:
        signal.signal(occasions.WARNING, before)


def test_the_interval_of_the_controller_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now, control = [1000.0], dict[str, Any]()
    monkeypatch.setattr(occasions.time, "monotonic", lambda: now[0])
    found = Occasions(AUTO, rank=0, world_size=1, generation=1, completed=lambda: 5, control=lambda: control)
    now[0] += FIRST_INTERVAL_S - 1.0
    assert found.due(5, last=False) is None
    control["interval_s"] = 120.0
    plan = found.due(6, last=False)
    assert plan is not None and (plan.step, plan.stop) == (6, False)
    assert found.due(7, last=False) is None
    now[0] += 121.0
    assert found.due(8, last=False) is not None


def test_what_is_asked_for_during_a_step_that_never_ends_is_told_all_the_same() -> None:
    """R31: 6 preemptions and no save in time must not look like no preemption."""
    told: list[tuple[str, str]] = []
    control: dict[str, Any] = {}
    found = Occasions(
        0,
        rank=0,
        world_size=1,
        generation=1,
        completed=lambda: 0,
        control=lambda: control,
        told=lambda kind, what: told.append((kind, what)),
    )
    found.start()
    control["save"] = "request 1"
    os.kill(os.getpid(), signal.SIGUSR2)
    deadline = time.monotonic() + 20.0
    while len(told) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    found.close()
    assert sorted(told) == [("asked", "request 1"), ("signal", "1")]
    plan = found.due(1, last=False)
    assert plan is not None and len(told) == 2, "nothing is told twice"


@pytest.mark.parametrize(("every", "steps"), [(0, [10]), (4, [4, 8, 10])])
def test_every_so_many_updates_and_the_last(every: int, steps: list[int]) -> None:
    found = Occasions(every, rank=0, world_size=1, generation=1, completed=lambda: 0, control=dict)
    assert [step for step in range(1, 11) if found.due(step, last=step == 10)] == steps


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="'hourly'"):
        Occasions("hourly", rank=0, world_size=1, generation=1, completed=lambda: 0, control=dict)
