"""Resume cases of public reports about the state, with relatives of each: R10 (the learning rate jumps at the resume
point), R11 (a part under another name, or not there)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from tests.worker_hooks.resume_stage import objects
from tests.worker_hooks.state_stage import Objects, attempt, told_checks
from worker_hooks.protocol.generations import accepted_folders
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch, VerificationFailed
from worker_hooks.training.resuming.first_update import judge
from worker_hooks.training.resuming.verify import Check, learning_rate_check

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    return told_checks(monkeypatch)


def step(schedule: Any) -> None:
    schedule.step(*([1.0] if isinstance(schedule, schedulers.ReduceLROnPlateau) else []))


def rates(tracked: Objects) -> list[float]:
    return [float(group["lr"]) for group in tracked["optimizer"].param_groups]


# --- R10 ----------------------------------------------------------------------------------------------------------

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=50),
    "warm-up": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=9), schedulers.CosineAnnealingLR(o, 9)], [9]
    ),
    "chained": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)]),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "step": lambda o: schedulers.StepLR(o, 2),
}


def scheduled(kind: str) -> Objects:
    tracked = objects()
    return {**tracked, "scheduler": SCHEDULES[kind](tracked["optimizer"])}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_kind_of_schedule_goes_on_where_it_was(tmp_path: Path, told: dict[str, Check], kind: str) -> None:
    """R10: a tracked scheduler is no jump, whichever it is."""
    whole, rest = scheduled(kind), scheduled(kind)
    for _ in range(8):
        whole["optimizer"].step()
        step(whole["scheduler"])
    first = scheduled(kind)
    attempt(tmp_path, first, 5, after=lambda _: step(first["scheduler"]))
    attempt(tmp_path, rest, 3, after=lambda _: step(rest["scheduler"]))
    assert rates(rest) == rates(whole)
    assert {told[name].outcome for name in ("learning_rate", "scheduler", "optimizer")} == {"PASS"}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_scheduler_built_again_after_the_restore(tmp_path: Path, told: dict[str, Check], kind: str) -> None:
    """R10: no loader is tracked, so the verification was over. Its jump is named before the first update changes
    anything; where it begins at the same rate, its drift is, before a checkpoint could lose its state."""
    first, again = scheduled(kind), scheduled(kind)
    attempt(tmp_path, first, 5, after=lambda _: step(first["scheduler"]))
    before: list[torch.Tensor] = []
    rebuilt: list[Any] = []

    def rebuild() -> None:
        before.extend(parameter.detach().clone() for parameter in again["model"].parameters())
        rebuilt.append(SCHEDULES[kind](again["optimizer"]))

    def go_on() -> None:
        attempt(tmp_path, again, 2, begin=rebuild, after=lambda _: step(rebuilt[0]))

    if kind in ("plateau", "step"):
        with pytest.raises(CheckpointError, match=r"\[scheduler\] optimizer: a \w+ drives it too"):
            go_on()
        return
    with pytest.raises(VerificationFailed, match="first update after step 5: learning_rate LR_JUMP optimizer: 0"):
        go_on()
    assert (told["learning_rate"].outcome, told["learning_rate"].code) == ("FAIL", "LR_JUMP")
    assert all(torch.equal(*pair) for pair in zip(again["model"].parameters(), before, strict=True))


def test_one_group_of_two_set_by_hand(tmp_path: Path, told: dict[str, Check], capsys: Any) -> None:
    """R10: without a schedule a script may set its rates as it likes, so it is told and goes on."""

    def two() -> Objects:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters(), "lr": 0.01}]
        return {"model": model, "optimizer": torch.optim.SGD(groups, momentum=0.9)}

    attempt(tmp_path, two(), 2)
    again, calls = two(), []

    def by_hand() -> None:
        again["optimizer"].param_groups[1]["lr"] = 0.1
        again["optimizer"].register_step_pre_hook(lambda *_: calls.append(1))

    attempt(tmp_path, again, 2, begin=by_hand)
    check = told["learning_rate"]
    assert (check.outcome, check.code, calls) == ("DEGRADED", "LR_JUMP", [1, 1])
    assert check.why == "optimizer: 0.01 as verified, 0.1 at the first update"
    assert "learning_rate LR_JUMP" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("now", "said", "outcome"),
    [
        ([0.5, 0.01], [], None),
        ([0.5 * 0.95, 0.01], [], None),  # by hand, a little
        ([1.0, 0.01], [], "DEGRADED"),
        ([0.5, 0.02], [[0.5, 0.01]], "FAIL"),
        ([0.5 * 0.95, 0.01], [[0.5, 0.01]], "DEGRADED"),
        ([0.05, 0.001], [[0.05, 0.001]], None),  # stepped before the update
        ([0.05, 0.001], [[0.1, 0.1], [0.05, 0.001]], None),
        ([float("nan"), 0.01], [[0.5, 0.01]], "FAIL"),
        ([0.5], [[0.5, 0.01]], "FAIL"),
    ],
)
def test_who_may_change_a_rate_before_the_first_update(
    now: list[float], said: list[list[float]], outcome: str | None
) -> None:
    """R10: another rate than the verified one is judged by who says so."""
    check = judge("optimizer", [0.5, 0.01], now, said)
    assert (check and check.outcome) == outcome


@pytest.mark.parametrize(
    ("saved", "now", "outcome"),
    [
        (0.1, float("nan"), "FAIL"),
        (0.1, float("inf"), "FAIL"),
        (0.0, 1e-12, "FAIL"),
        (0.0, 0.0, "PASS"),
        (0.1, -0.1, "FAIL"),
        (0.1, 0.1 * (1 + 1e-7), "DEGRADED"),
    ],
)
def test_a_rate_that_is_no_number_has_jumped(saved: float, now: float, outcome: str) -> None:
    """R10: a comparison with NaN or infinity is never 'greater'."""
    assert learning_rate_check([saved.hex()], [now.hex()]).outcome == outcome


# --- R11 ----------------------------------------------------------------------------------------------------------


class Counter:
    """An object of the script's own. `reads`: the key that its load looks for, and takes 0 where it is not."""

    def __init__(self, value: int = 0, reads: str = "value") -> None:
        self.value, self.reads = value, reads

    def state_dict(self) -> Objects:
        return {"value": self.value, "unknown": [1, None]}

    def load_state_dict(self, state: Objects) -> None:
        self.value = int(state.get(self.reads, 0))


class Refusing(Counter):
    def load_state_dict(self, state: Objects) -> None:
        raise KeyError("unexpected key")


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        ({"counter": Counter(3)}, {"countr": Counter()}, r"checkpoint: \['countr'\]; only in .*\['counter'\]"),
        ({"counter": Counter(3)}, {}, r"not in the checkpoint: \[\]; only in the checkpoint: \['counter'\]"),
        ({}, {"counter": Counter()}, r"not in the checkpoint: \['counter'\]; only in the checkpoint: \[\]"),
        ({"counter": Counter(3)}, {"counter": Refusing()}, "counter: its load_state_dict does not take what was"),
        ({"schedule": "step"}, {"shedule": "step"}, r"\['shedule'\]; only in the checkpoint: \['schedule'\]"),
    ],
    ids=["renamed", "missing", "additional", "refusing", "misspelled"],
)
def test_parts_that_are_others_than_at_the_save(tmp_path: Path, saved: Objects, now: Objects, said: str) -> None:
    """R11: named on every rank, and the checkpoint stays: there is nothing wrong with it."""

    def made(more: Objects) -> Objects:
        tracked = objects()
        made = {k: SCHEDULES[v](tracked["optimizer"]) if isinstance(v, str) else v for k, v in more.items()}
        return {**tracked, "extra": made}

    run = attempt(tmp_path, made(saved), 1)
    with pytest.raises(CheckpointMismatch, match=said):
        attempt(tmp_path, made(now), 0)
    assert accepted_folders(run.folder) and not list(run.folder.glob("*/quarantine.json"))


def test_a_load_that_looks_for_another_key_is_no_load(tmp_path: Path, told: dict[str, Check]) -> None:
    """R11: the typo is in the object's own load, which says nothing; its state afterwards does."""
    attempt(tmp_path, {**objects(), "extra": {"counter": Counter(3)}}, 1)
    with pytest.raises(VerificationFailed, match=r"counter: value: 3 at the save, 0 now"):
        attempt(tmp_path, {**objects(), "extra": {"counter": Counter(reads="vaule")}}, 0)
    assert told["counter"].outcome == "FAIL"


def test_an_optimizer_under_another_name_or_as_a_list_is_not_quietly_fresh(tmp_path: Path) -> None:
    """R11: both spellings are named."""
    attempt(tmp_path, objects(), 1)
    again = objects()
    with pytest.raises(CheckpointMismatch, match=r"\['optimizr'\]; only in the checkpoint: \['optimizer'\]"):
        attempt(tmp_path, {"model": again["model"], "extra": {"optimizr": again["optimizer"]}}, 0)
    with pytest.raises(CheckpointMismatch, match=r"\['optimizer.0'\]; only in the checkpoint: \['optimizer'\]"):
        attempt(tmp_path, {"model": again["model"], "optimizer": [again["optimizer"]]}, 0)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_state_that_the_checkpoint_does_not_have_is_dropped(tmp_path: Path, told: Any, kind: Any) -> None:
    """R11: an optimizer that had no state yet comes back without any, whatever the script did before the restore."""

    def made() -> Objects:
        model = objects()["model"]
        model[0].bias.requires_grad_(False)
        return {"model": model, "optimizer": kind(model.parameters(), lr=0.1)}

    first, again = made(), made()
    attempt(tmp_path, first, 2)
    again["model"][0].bias.requires_grad_(True)
    again["model"](torch.randn(4, 8)).sum().backward()
    again["optimizer"].step()
    attempt(tmp_path, again, 0)
    counts = [len(tracked["optimizer"].state_dict()["state"]) for tracked in (first, again)]
    assert counts[0] == counts[1] and told["optimizer"].outcome == "PASS"


@pytest.mark.parametrize("entry", [{"global": {"k": 1}}, {"k": 1}], ids=["dict", "number"])
def test_optimizer_state_of_no_parameter_is_refused_by_name(tmp_path: Path, entry: Objects) -> None:
    """R11: it has no name under which it could come back."""
    tracked = objects()
    with pytest.raises(CheckpointError, match="optimizer: its state has entries of no parameter in its groups"):
        attempt(tmp_path, tracked, 2, begin=lambda: tracked["optimizer"].state.update(entry))
