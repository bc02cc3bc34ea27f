"""R14: weights that are not where they belong, named by the digests: two layers, two ranks, an average."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from worker_hooks import Run
from worker_hooks.training.errors import VerificationFailed
from worker_hooks.training.resuming import resumption
from worker_hooks.training.resuming.live_digests import Compared
from worker_hooks.training.resuming.swapped import exchanged

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELUME_RUN_ID", raising=False)


def objects(optimizer: Any = torch.optim.AdamW) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    return {"model": model, "optimizer": optimizer(model.parameters(), lr=0.1)}


def train(tracked: dict[str, Any], root: Path, steps: int = 2) -> None:
    with Run(root=root, checkpoint_every=0, asynchronous=False, **tracked) as run:
        for _ in range(steps):
            tracked["model"](torch.randn(4, 8)).square().sum().backward()
            tracked["optimizer"].step()
            tracked["optimizer"].zero_grad()
            if "ema" in tracked:
                tracked["ema"].update_parameters(tracked["model"])
            run.step()


def resume_with(
    tracked: dict[str, Any], root: Path, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> VerificationFailed:
    """A load that puts things where they do not belong; what the verification says of it."""
    warm_up = resumption.Resumption._warm_up

    def damaged(self: Any, *args: Any) -> None:
        with torch.no_grad():
            damage(tracked)
        warm_up(self, *args)

    monkeypatch.setattr(resumption.Resumption, "_warm_up", damaged)
    with pytest.raises(VerificationFailed) as caught, Run(root=root, checkpoint_every=0, **tracked):
        pass
    return caught.value


def exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def test_two_layers_exchanged_on_load_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(objects(), tmp_path)
    said = resume_with(objects(), tmp_path, lambda t: exchange(t["model"][0].weight, t["model"][2].weight), monkeypatch)
    assert said.parts == ("parameters",)
    assert "WEIGHTS_SWAPPED model/0.weight holds what was stored as model/2.weight, model/2.weight holds" in str(said)


def test_a_layer_loaded_twice_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(objects(), tmp_path)
    said = resume_with(objects(), tmp_path, lambda t: t["model"][3].weight.copy_(t["model"][0].weight), monkeypatch)
    assert "WEIGHTS_SWAPPED model/3.weight holds what was stored as model/0.weight" in str(said)


def test_moments_of_another_parameter_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an optimizer that goes by number does when the parameters come in another order."""
    train(objects(), tmp_path)

    def damage(tracked: dict[str, Any]) -> None:
        state, model = tracked["optimizer"].state, tracked["model"]
        exchange(state[model[0].weight]["exp_avg"], state[model[2].weight]["exp_avg"])

    said = resume_with(objects(), tmp_path, damage, monkeypatch)
    assert said.parts == ("optimizer",)
    assert "STATE_SWAPPED optimizer/model:0.weight/exp_avg holds what was stored as" in str(said)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_tensor_of_one_value_says_nothing_about_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    tracked = objects(torch.optim.SGD)
    with torch.no_grad():
        tracked["model"][2].bias.fill_(value)
        tracked["model"][2].bias.requires_grad_(False)
    train(tracked, tmp_path)
    again = objects(torch.optim.SGD)
    said = resume_with(again, tmp_path, lambda t: t["model"][0].bias.fill_(value), monkeypatch)
    assert "SWAPPED" not in str(said) and "model/0.bias" in str(said)


def test_other_bits_are_no_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(objects(), tmp_path)
    said = resume_with(objects(), tmp_path, lambda t: t["model"][0].weight.mul_(2.0), monkeypatch)
    assert "SWAPPED" not in str(said) and "[parameters: model/0.weight]" in str(said)


def test_what_another_rank_stored_is_named_by_its_rank_and_place() -> None:
    """A rank that took another one's shard, or its own copy of a buffer."""
    live = {"model/w": torch.arange(4.0), "model/norm": torch.arange(3.0)}
    stored = {
        ("model/w", (0, 0)): "x:a",
        ("model/w", (4, 0)): "x:b",
        ("rank-00000:model/norm", (0,)): "x:c",
        ("rank-00001:model/norm", (0,)): "x:d",
    }
    keys = {"model/w": "model/w", "model/norm": "rank-00001:model/norm"}
    found = Compared({"model/w[4, 0]": "x:b", "model/norm": "x:d"}, {"model/w[4, 0]": "x:a", "model/norm": "x:c"})
    assert exchanged(found, live, stored, keys) == [
        "model/norm holds what was stored as rank-00000:model/norm",
        "model/w[4, 0] holds what was stored as model/w",
    ]


# --- an average in the model's place ------------------------------------------------------------------------------


def averaged() -> dict[str, Any]:
    tracked = objects()
    return {**tracked, "ema": AveragedModel(tracked["model"], multi_avg_fn=get_ema_multi_avg_fn(0.5))}


def outcome_of_resume(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found: list[Any] = []
    monkeypatch.setattr(resumption.Resumption, "report", lambda self, stage, step, checks: found.extend(checks))
    with Run(root=root, checkpoint_every=0, **averaged()):
        pass
    return next(check for check in found if check.name == "parameters")


def test_a_checkpoint_whose_weights_are_its_average_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved while the average stood in for the weights: every bit loads, and it is still another run."""
    tracked = averaged()
    train(tracked, tmp_path, steps=3)
    with Run(root=tmp_path, checkpoint_every=0, asynchronous=False, **tracked) as run, torch.no_grad():
        for one, other in zip(tracked["model"].parameters(), tracked["ema"].module.parameters(), strict=True):
            one.copy_(other)
        run.step()
    check = outcome_of_resume(tmp_path, monkeypatch)
    assert (check.outcome, check.code) == ("DEGRADED", "WEIGHTS_SWAPPED")


@pytest.mark.parametrize("steps", [1, 3])
def test_an_average_that_has_just_begun_and_one_that_differs_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    train(averaged(), tmp_path, steps=steps)
    assert outcome_of_resume(tmp_path, monkeypatch).outcome == "PASS"
