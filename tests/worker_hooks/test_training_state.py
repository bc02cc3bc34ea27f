"""The complete state, taken apart and put back: names, models, optimizers, schedulers."""

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from worker_hooks.training.errors import CheckpointMismatch
from worker_hooks.training.files import digests
from worker_hooks.training.state import names
from worker_hooks.training.state.tracked import Tracked

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)  # a name that DDP uses too must survive
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.module(x))


def test_names_are_those_of_get_model_state_dict() -> None:
    net = Net()
    compiled = torch.compile(net, backend="eager")
    assert set(names.state(net)) == set(names.state(compiled)) == set(get_model_state_dict(compiled))
    assert {name for name, _ in names.parameters(compiled)} == {name for name, _ in net.named_parameters()}
    assert names.clean(compiled, "_orig_mod.module.weight") == "module.weight"


def test_names_and_homes_under_ddp() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        replica = nn.parallel.DistributedDataParallel(net)
        assert set(names.state(replica)) == set(names.state(net)) == set(get_model_state_dict(replica))
        outside = nn.Linear(2, 2)
        tracked = tracking(nn.ModuleDict({"inside": replica, "outside": outside}), torch.optim.SGD(net.parameters()))
        parts = tracked.collect(world_size=4)
        assert set(parts.own) == {"model/outside.weight", "model/outside.bias"}
        assert parts.from_rank_zero == {f"model/inside.norm.{name}" for name, _ in net.norm.named_buffers()}
        replica.broadcast_buffers = False
        assert parts.from_rank_zero <= set(tracked.collect(world_size=4).own)
        del replica
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["adamw", "sgd", "adagrad", "tensor_lr"])
def test_reading_the_state_changes_nothing_and_putting_it_back_gives_every_bit(kind: str) -> None:
    make = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
        "tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), capturable=False, foreach=False),
    }[kind]
    net = Net()
    optimizer = make(net.parameters())
    tracked = tracking(net, optimizer)
    before = json.dumps(str(optimizer.state_dict()))
    tracked.collect(1)
    assert json.dumps(str(optimizer.state_dict())) == before, "a fresh optimizer took a step"
    for _ in range(3):
        net(torch.randn(4, 2)).sum().backward()
        optimizer.step()
    parts = tracked.collect(1)
    stored = {key: value.clone() for key, value in {**parts.shared, **parts.own}.items()}

    other = Net()
    fresh = make(other.parameters())
    target = tracking(other, fresh)
    fill, finish = target.targets(target.collect(1), json.loads(json.dumps(parts.values)))
    assert set(fill) == set(stored)
    for key, tensor in fill.items():
        tensor.copy_(stored[key])
    finish(fill)
    again = target.collect(1)
    assert again.values == parts.values
    assert digests.tensors_digest({**again.shared, **again.own}) == digests.tensors_digest(stored)


def stepped(net: nn.Module) -> torch.optim.Optimizer:
    """With all of its state."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    return optimizer


def test_an_optimizers_own_state_is_filled_where_it_is_as_it_was_stored() -> None:
    """A load then needs no fresh memory, and what looks at these tensors sees what was loaded."""
    net, other = Net(), Net()
    optimizer = stepped(other)
    mine = tracking(other, optimizer)
    stored = tracking(net, stepped(net)).collect(1)
    fill, finish = mine.targets(mine.collect(1), stored.values)
    before = {id(p): {key: value.data_ptr() for key, value in state.items()} for p, state in optimizer.state.items()}
    for key, tensor in fill.items():
        tensor.copy_(stored.shared[key])
    finish(fill)
    after = {id(p): {key: value.data_ptr() for key, value in state.items()} for p, state in optimizer.state.items()}
    assert after == before
    assert digests.tensors_digest(mine.collect(1).shared) == digests.tensors_digest(stored.shared)


def of_another_type(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["exp_avg"] = state["exp_avg"].double()


def of_another_size(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["exp_avg"] = state["exp_avg"].new_zeros(7)


def strided(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["exp_avg"] = state["exp_avg"].t().contiguous().t()


def over_one_memory(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = state["exp_avg"]


def over_the_parameter(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["exp_avg"] = optimizer.param_groups[0]["params"][0].detach()


def none_at_all(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimizer.state.clear()


def more_than_was_stored(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["momentum"] = torch.zeros(2, 2)


@pytest.mark.parametrize(
    "change",
    [
        of_another_type,
        of_another_size,
        strided,
        over_one_memory,
        over_the_parameter,
        none_at_all,
        more_than_was_stored,
    ],
)
def test_state_that_cannot_be_filled_in_place_is_made_anew(change: Any) -> None:
    net, other = Net(), Net()
    optimizer = stepped(other)
    change(optimizer, optimizer.state[other.module.weight])
    mine = tracking(other, optimizer)
    stored = tracking(net, stepped(net)).collect(1)
    fill, finish = mine.targets(mine.collect(1), stored.values)
    for key, tensor in fill.items():
        tensor.copy_(stored.shared[key])
    finish(fill)
    assert digests.tensors_digest(mine.collect(1).shared) == digests.tensors_digest(stored.shared)


def test_other_parameter_groups_are_refused() -> None:
    net, other = Net(), Net()
    stored = tracking(net, torch.optim.SGD(net.parameters(), lr=0.1)).collect(1).values
    groups = [{"params": list(other.module.parameters())}, {"params": list(other.norm.parameters())}]
    target = tracking(other, torch.optim.SGD(groups, lr=0.1))
    with pytest.raises(CheckpointMismatch, match="parameter groups"):
        target.targets(target.collect(1), stored)


def test_a_cache_that_no_state_dict_holds_is_no_part_of_the_run() -> None:
    """It may be there at the save and not yet after the load."""
    net = Net()
    net.register_buffer("cache", torch.zeros(3), persistent=False)
    tracked = tracking(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert not [key for part in tracked.buffers(1) for key in part if "cache" in key]
    assert not [key for key in tracked.collect(1).shared if "cache" in key]


def test_several_models_and_optimizers_have_names_of_their_own() -> None:
    tracked = Tracked()
    tracked.add("model", {"generator": Net(), "critic": Net()})
    tracked.add("scheduler", [])
    assert set(tracked.models) == {"model.generator", "model.critic"}
    with pytest.raises(TypeError, match="int has no state_dict"):
        tracked.add("count", 3)


def test_an_averaged_model_and_every_usual_scheduler_can_be_stored() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedulers = torch.optim.lr_scheduler
    tracked = tracking(net, optimizer)
    tracked.add("ema", torch.optim.swa_utils.AveragedModel(net))
    tracked.add(
        "scheduler",
        [
            schedulers.LambdaLR(optimizer, lambda step: 1.0),
            schedulers.MultiStepLR(optimizer, [3, 5]),
            schedulers.OneCycleLR(optimizer, 0.1, 10),
            schedulers.ReduceLROnPlateau(optimizer),
            schedulers.SequentialLR(
                optimizer,
                [schedulers.ConstantLR(optimizer, total_iters=2), schedulers.CosineAnnealingLR(optimizer, 5)],
                milestones=[2],
            ),
        ],
    )
    tracked.add("scaler", torch.amp.GradScaler("cpu", init_scale=512.0))
    parts = tracked.collect(1)
    json.dumps(parts.values, allow_nan=False)
    assert parts.values["scaler"]["scale"] == 512.0


def tracking(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tracked:
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    return tracked
