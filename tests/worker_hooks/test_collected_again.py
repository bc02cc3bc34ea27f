"""The state is collected again cheaply, and never as it was: whatever was put in another's place is noticed."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from worker_hooks.training.files.digests import tensors_digest
from worker_hooks.training.state.tracked import Parts, Tracked

pytestmark = pytest.mark.torch


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 3}

    def set_extra_state(self, state: Any) -> None: ...


def make(optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> Tracked:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    found = Tracked()
    found.add("model", model)
    found.add("optimizer", optimizer(model.parameters(), lr=0.1, **options))
    step(found)
    return found


def step(tracked: Tracked) -> None:
    model, optimizer = tracked.models["model"], tracked.optimizers["optimizer"]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def said(parts: Parts) -> Any:
    return (list(parts.shared), tensors_digest(parts.shared), tensors_digest(parts.own), parts.values)


def as_new(tracked: Tracked) -> Any:
    """What somebody who never looked before collects."""
    fresh = Tracked()
    for name, item in (*tracked.models.items(), *tracked.optimizers.items(), *tracked.others.items()):
        fresh.add(name, item)
    return said(fresh.collect(1))


def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts full looks at the models and at an optimizer."""
    found: list[str] = []
    for name in ("_look", "_look_at"):
        real = getattr(Tracked, name)
        monkeypatch.setattr(
            Tracked, name, lambda self, *a, real=real, name=name: (found.append(name), real(self, *a))[1]
        )
    return found


def test_the_second_time_nothing_is_looked_for_and_the_numbers_are_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = make()
    first = said(tracked.collect(1))
    found = looks(monkeypatch)
    step(tracked)
    again = tracked.collect(1)
    assert found == []
    assert said(again) == as_new(tracked) != first
    assert all(not tensor.requires_grad for tensor in again.shared.values())


def reload(tracked: Tracked) -> None:
    """New tensors in the places of all of them."""
    optimizer = tracked.optimizers["optimizer"]
    optimizer.load_state_dict(optimizer.state_dict())
    for items in optimizer.state.values():
        items["exp_avg"] = items["exp_avg"] + 1.0


def other_memory(tracked: Tracked) -> None:
    for parameter in tracked.models["model"].parameters():
        parameter.data = parameter.detach().clone() + 1.0


CHANGES: dict[str, Callable[[Tracked], object]] = {
    "parameter": lambda t: setattr(t.models["model"][0], "weight", nn.Parameter(torch.ones(4, 4))),
    "memory of a parameter": other_memory,
    "transposed in place": lambda t: setattr(t.models["model"][0].weight, "data", t.models["model"][0].weight.data.t()),
    "type": lambda t: t.models["model"].to(torch.float64),
    "buffer": lambda t: setattr(t.models["model"][1], "running_mean", torch.full((4,), 7.0)),
    "new buffer": lambda t: t.models["model"].register_buffer("more", torch.ones(2)),
    "buffer that is not saved any more": lambda t: t.models["model"][1]._non_persistent_buffers_set.add("running_var"),
    "module": lambda t: t.models["model"].__setitem__(2, nn.Linear(4, 4)),
    "new module": lambda t: t.models["model"].append(nn.Linear(4, 4)),
    "order of modules": lambda t: t.models["model"]._modules.update({"0": t.models["model"]._modules.pop("0")}),
    "hook": lambda t: t.models["model"]._register_state_dict_hook(lambda m, state, *_: state.update(x=torch.ones(1))),
    "state of the optimizer": reload,
    "one moment": lambda t: next(iter(t.optimizers["optimizer"].state.values())).update(exp_avg=torch.ones(4, 4)),
    "type of a moment": lambda t: setattr(
        next(iter(t.optimizers["optimizer"].state.values()))["exp_avg"], "data", torch.ones(4, 4, dtype=torch.float16)
    ),
    "more state": lambda t: next(iter(t.optimizers["optimizer"].state.values())).update(extra=torch.ones(3), calls=2),
    "less state": lambda t: t.optimizers["optimizer"].state.popitem(),
    "setting": lambda t: t.optimizers["optimizer"].param_groups[0].update(lr=0.7, weight_decay=0.3),
    "setting that is a tensor": lambda t: t.optimizers["optimizer"].param_groups[0].update(lr=torch.tensor(0.7)),
    "group": lambda t: t.optimizers["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(2))]}),
    "order of parameters": lambda t: t.optimizers["optimizer"].param_groups[0]["params"].reverse(),
    "another optimizer": lambda t: t.add("optimizer", torch.optim.SGD(t.models["model"].parameters(), lr=0.1)),
    "another model": lambda t: t.add("model", nn.Linear(4, 4)),
    "a further model": lambda t: t.add("ema", nn.Linear(4, 4)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_put_in_anothers_place_is_noticed(change: str) -> None:
    tracked = make()
    before = said(tracked.collect(1))
    CHANGES[change](tracked)
    assert said(tracked.collect(1)) == as_new(tracked)
    assert said(tracked.collect(1)) == as_new(tracked) != before


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adafactor, {}),
        (torch.optim.LBFGS, {"max_iter": 2}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.ASGD, {}),
    ],
)
def test_every_kind_of_optimizer_is_collected_as_it_is(
    optimizer: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    tracked = make(optimizer, **options)
    for _ in range(3):
        tracked.collect(1)
        step(tracked)
        assert said(tracked.collect(1)) == as_new(tracked)


def test_a_module_with_a_state_of_its_own_is_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = Tracked()
    tracked.add("model", nn.Sequential(Extra(2, 2)))
    found = looks(monkeypatch)
    for count in (1, 2):
        assert tracked.collect(1).values == {"model/0._extra_state": {"calls": 3}}
        assert found == ["_look"] * count


def test_what_the_run_lets_go_of_is_not_kept_alive() -> None:
    tracked = make()
    tracked.collect(1)
    moment = weakref.ref(next(iter(tracked.optimizers["optimizer"].state.values()))["exp_avg"])
    reload(tracked)
    gc.collect()
    assert moment() is None


def test_the_same_on_several_ranks_is_another_deal() -> None:
    tracked = make()
    one, four = tracked.collect(1), tracked.collect(4)
    assert set(one.shared) == set(four.own) and not four.shared
