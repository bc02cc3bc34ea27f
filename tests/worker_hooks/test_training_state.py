"""The complete state, taken apart and put back: values, tensors, names, optimizers. No pickle anywhere."""

import json
import math
import random
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from tests.worker_hooks.share_folder import load_shares
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.files import digests
from worker_hooks.training.saving import share_writer
from worker_hooks.training.saving.shares import my_share
from worker_hooks.training.state import codec, names, random_state
from worker_hooks.training.state.codec import decode, encode
from worker_hooks.training.state.tracked import Parts, Tracked

pytestmark = pytest.mark.torch

PACKAGE = Path(codec.__file__).parents[1]

scalars = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.just("$"), inner)
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    data = json.loads(json.dumps(encode(value, "value", {}), allow_nan=False))
    back = decode(data, {})
    assert back == value and repr(back) == repr(value)


def test_values_json_does_not_have() -> None:
    tensors: codec.Tensors = {}
    value = {
        "milestones": Counter({3: 2}),
        "ordered": OrderedDict(a=1),
        "nan": math.nan,
        "inf": -math.inf,
        "numpy": numpy.float64(0.1),
        "array": numpy.arange(3),
        "tensor": torch.arange(4),
    }
    back = decode(json.loads(json.dumps(encode(value, "v", tensors), allow_nan=False)), tensors)
    assert isinstance(back["milestones"], Counter) and back["milestones"] == {3: 2}
    assert math.isnan(back["nan"]) and back["inf"] == -math.inf
    assert back["numpy"] == 0.1 and back["array"].tolist() == [0, 1, 2]
    assert torch.equal(back["tensor"], torch.arange(4)) and "v.tensor" in tensors


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None, Path("x"), [complex(1, 2)]])
def test_what_cannot_be_stored_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"scheduler\.thing.*cannot be stored"):
        encode({"thing": value}, "scheduler", {})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="unknown kind"):
        decode({"$": "python/object"}, {})


def test_nothing_is_pickled() -> None:
    """The source says it too: no import, no torch.save or torch.load, no object collective."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "torch.save(", "_object_list", "all_gather_object", "marshal"):
            assert word not in text, f"{path}: {word}"


# --- random state ---------------------------------------------------------------------------------------------------


def test_every_generator_comes_back_and_reading_draws_nothing() -> None:
    def draw() -> list[float]:
        return [
            random.random(),
            random.gauss(0, 1),
            float(numpy.random.rand()),
            numpy.random.randn(),
            *torch.rand(3).tolist(),
        ]

    random.gauss(0, 1)
    numpy.random.randn()
    state = json.loads(json.dumps(random_state.capture()))
    assert random_state.digests(state) == random_state.digests(random_state.capture())
    first = draw()
    assert random_state.digests(state) != random_state.digests(random_state.capture())
    random_state.restore(state)
    assert draw() == first


# --- tensors on disk --------------------------------------------------------------------------------------------------


def test_tensors_of_every_kind_come_back_to_the_bit(tmp_path: Path) -> None:
    kinds = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.complex64,
    )
    tensors = {str(kind): torch.randn(3, 5).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "strided": torch.randn(4, 6).t()}
    tensors["nan"] = torch.tensor([float("nan"), -0.0])
    files = share_writer.save_share(tmp_path, 0, tensors, "crc32")
    assert {entry.name for entry in files} == {"rank-00000.d/tensors.bin", "rank-00000.d/index.json"}
    for entry in files:
        assert digests.file_digest(tmp_path / entry.name, "crc32") == entry.digest
        assert (tmp_path / entry.name).stat().st_size == entry.bytes
    loaded = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in tensors.items()}
    load_shares(tmp_path, 1, loaded)
    assert digests.tensors_digest(loaded) == digests.tensors_digest(tensors)


def test_shares_of_four_ranks_load_as_one(tmp_path: Path) -> None:
    parts = Parts(shared={f"w{i}": torch.randn(7 + i) for i in range(9)}, own={"mine": torch.tensor(0.0)})
    for rank in range(4):
        parts.own = {"mine": torch.tensor(float(rank))}
        share_writer.save_share(tmp_path, rank, my_share(parts, rank, 4), "crc32")
    targets = {key: torch.zeros_like(value) for key, value in parts.shared.items()}
    targets["rank-00002:mine"] = torch.zeros(())
    load_shares(tmp_path, 4, targets)
    assert all(torch.equal(targets[key], value) for key, value in parts.shared.items())
    assert targets["rank-00002:mine"] == 2.0


def test_every_shared_tensor_is_dealt_to_one_rank_and_the_bytes_are_even() -> None:
    parts = Parts(shared={f"w{i}": torch.zeros(100 + i) for i in range(40)}, from_rank_zero={"w7"})
    shares = [my_share(parts, rank, 4) for rank in range(4)]
    assert sorted(key for share in shares for key in share) == sorted(parts.shared)
    assert "w7" in shares[0]
    sizes = [sum(tensor.numel() for tensor in share.values()) for share in shares]
    assert max(sizes) - min(sizes) <= 140


def test_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    share_writer.save_share(tmp_path, 0, {"a": torch.zeros(2)}, "crc32")
    with pytest.raises(RuntimeError, match="Missing key"):
        load_shares(tmp_path, 1, {"b": torch.zeros(2)})


# --- names and objects ------------------------------------------------------------------------------------------------


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
