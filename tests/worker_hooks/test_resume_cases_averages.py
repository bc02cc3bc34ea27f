"""R14, a resume case of a public report (an average was saved as the model), with relatives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.worker_hooks.resume_stage import bits, objects
from tests.worker_hooks.state_stage import Objects, attempt, told_checks
from worker_hooks.training.resuming.verify import Check

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    return told_checks(monkeypatch)


class Shadow:
    """An average of the script's own, which counts its updates under `counts`, or not at all."""

    def __init__(self, model: nn.Module, counts: str | None) -> None:
        self.values, self.counts, self.updates = [p.detach().clone() for p in model.parameters()], counts, 0

    def update_parameters(self, model: nn.Module) -> None:
        self.updates += 1
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.1 if self.updates > 1 else 1.0)

    def parameters(self) -> list[torch.Tensor]:
        return self.values

    def state_dict(self) -> Objects:
        return {"shadow": self.values} | ({self.counts: self.updates} if self.counts else {})

    def load_state_dict(self, state: Objects) -> None:
        self.values, self.updates = list(state["shadow"]), state.get(self.counts or "", 0)


class Copy(nn.Module):
    """A module that averages the whole state, buffers too, and counts nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = objects()["model"]
        self.module.load_state_dict(model.state_dict())

    def update_parameters(self, model: nn.Module) -> None:
        for mine, its in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(0.9 * mine + 0.1 * its)


AVERAGES: dict[str, Callable[[nn.Module], Any]] = {
    "counts": lambda model: Shadow(model, "num_updates"),
    "counts nothing": lambda model: Shadow(model, None),
    "module": Copy,
    "torch's": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "torch's with buffers": lambda model: AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
}


def averaged(kind: str, name: str = "ema") -> Objects:
    tracked = objects()
    average = AVERAGES[kind](tracked["model"])
    return {**tracked, **({"ema": average} if name == "ema" else {"extra": {name: average}})}


@pytest.mark.parametrize(
    ("kind", "name", "steps", "swapped"),
    [(kind, "ema", 3, True) for kind in AVERAGES]
    + [("torch's", "averaged", 3, True), ("counts", "ema.generator", 3, True)]
    + [
        ("counts", "ema", 3, False),
        ("module", "ema", 3, False),
        ("counts", "ema", 1, False),
        ("module", "ema", 1, True),
    ],
)
def test_an_average_in_the_models_place(
    tmp_path: Path, told: dict[str, Check], kind: str, name: str, steps: int, swapped: bool
) -> None:
    """R14: left in the model when it was saved, whatever keeps the average. One update makes none yet."""
    tracked = averaged(kind, name)
    average = tracked["ema"] if name == "ema" else tracked["extra"][name]

    def after(step: int) -> None:
        average.update_parameters(tracked["model"])
        if swapped and step == steps:
            with torch.no_grad():
                for parameter, value in zip(tracked["model"].parameters(), average.parameters(), strict=True):
                    parameter.copy_(value)

    attempt(tmp_path, tracked, steps, after=after)
    attempt(tmp_path, averaged(kind, name), 0)
    check = told["parameters"]
    if swapped and steps > 1:
        assert (check.outcome, check.code) == ("DEGRADED", "WEIGHTS_SWAPPED")
        assert str(check.why).startswith(f"the weights of model are those of {name}: ")
    else:
        assert (check.outcome, check.code) == ("PASS", None)


class ScheduleFree(torch.optim.SGD):
    """Weights that differ between training and evaluation, told apart by a setting of the groups."""

    def swap(self, training: bool) -> None:
        for group in self.param_groups:
            if group.setdefault("train_mode", True) != training:
                for parameter in group["params"]:
                    parameter.data.mul_(2.0 if training else 0.5)
                group["train_mode"] = training


@pytest.mark.parametrize("training", [True, False])
def test_a_schedule_free_optimizer_comes_back_in_the_mode_of_its_weights(
    tmp_path: Path, told: dict[str, Check], training: bool
) -> None:
    """R14: weights for evaluation are no damage where the state says that they are such."""

    def made() -> Objects:
        model = objects()["model"]
        return {"model": model, "optimizer": ScheduleFree(model.parameters(), lr=0.1, momentum=0.9)}

    first, again = made(), made()
    attempt(tmp_path, first, 2, after=lambda step: first["optimizer"].swap(training))
    attempt(tmp_path, again, 0)
    assert again["optimizer"].param_groups[0]["train_mode"] == training
    assert bits(again) == bits(first) and told["optimizer"].outcome == told["parameters"].outcome == "PASS"
