"""Findings that the tracked objects show by themselves. All is read, nothing changed, no device waited for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.lint.findings import NOTE, Finding, some
from worker_hooks.training.state import ddp, names
from worker_hooks.training.state.codec import encode
from worker_hooks.training.state.optimizer_state import OptimizerState
from worker_hooks.training.state.tracked import Tracked, is_average


def look(tracked: Tracked) -> Iterator[Finding]:
    for check in _CHECKS:
        yield from check(tracked)


def bypassed_loaders(positions: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """The run is saved, but no batch came through a tracked loader."""
    if positions and all(position["ledger"]["epoch"] is None for position in positions.values()):
        text = "tracked, but no batch of it came through run.batches(loader), so its position is unknown; use that"
        yield Finding("data_position", some(positions), text)


def is_scheduled(tracked: Tracked, optimizer: torch.optim.Optimizer) -> bool:
    """By a tracked scheduler. One that does not say whose it is counts for all."""
    for name, item in tracked.others.items():
        owner = getattr(item, "optimizer", None)
        if owner is optimizer or (owner is None and name.partition(".")[0] == "scheduler"):
            return True
    return False


def unkept(tracked: Tracked, tensors: Iterable[torch.Tensor]) -> bool:
    """No tracked model or other object holds any of them."""
    kept = {_memory(parameter) for model in tracked.models.values() for parameter in model.parameters()}
    kept |= {_memory(tensor) for item in tracked.others.values() for tensor in _tensors(_state(item))}
    return not any(_memory(tensor) in kept for tensor in tensors)


def _optimizer_parameters(tracked: Tracked) -> Iterator[Finding]:
    known = {id(parameter) for model in tracked.models.values() for parameter in model.parameters()}
    stored = {_memory(tensor) for item in tracked.others.values() for tensor in _tensors(_state(item))} - {0}
    for name, optimizer in tracked.optimizers.items():
        strange = [
            f"group {index}, parameter {place}"
            for index, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
            if id(parameter) not in known and _memory(parameter) not in stored
        ]
        if strange:
            text = f"updates parameters of no tracked model ({some(strange)}), which nobody saves; track their model"
            yield Finding("optimizer_parameters", name, text)


def _schedulers(tracked: Tracked) -> Iterator[Finding]:
    """Most schedulers leave `initial_lr` in the groups."""
    for name, optimizer in tracked.optimizers.items():
        if any("initial_lr" in group for group in optimizer.param_groups) and not is_scheduled(tracked, optimizer):
            text = "its groups carry the mark of a learning rate scheduler that is not tracked; track(scheduler=…)"
            yield Finding("scheduler", name, text)


def _scheduler_functions(tracked: Tracked) -> Iterator[Finding]:
    for name, item in tracked.others.items():
        functions = getattr(item, "lr_lambdas", None)
        if isinstance(functions, list) and any(_is_function(function) for function in functions):
            text = "its functions are not stored; every attempt must build it with the same ones"
            yield Finding("scheduler_function", name, text, NOTE)


def _values(tracked: Tracked) -> Iterator[Finding]:
    """What the save would stumble over, all at once."""
    for name, optimizer in tracked.optimizers.items():
        yield from _refused(name, partial(_optimizer_values, name, optimizer, tracked))
    for name, item in tracked.others.items():
        yield from _stored(name, item.state_dict)
    for name, model in tracked.models.items():
        for key, module in model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield from _stored(f"{name}/{key}", module.get_extra_state)


def _optimizer_values(name: str, optimizer: torch.optim.Optimizer, tracked: Tracked) -> None:
    OptimizerState(name, optimizer, tracked.models).values()


def _stored(where: str, read: Callable[[], Any]) -> Iterator[Finding]:
    return _refused(where, lambda: encode(read(), where, {}))


def _refused(where: str, act: Callable[[], Any]) -> Iterator[Finding]:
    try:
        act()
    except CheckpointError as error:
        yield Finding("value", where, str(error).removeprefix(f"{where}: "))


def _tensor_kinds(tracked: Tracked) -> Iterator[Finding]:
    for path, tensor in _all_tensors(tracked):
        if tensor.is_meta:
            yield Finding("tensor", path, "on the meta device, so it has no values; materialize the model first")
        elif tensor.layout is not torch.strided:
            yield Finding("tensor", path, f"layout {tensor.layout} has no bytes to store; keep it dense, or rebuild it")
        elif tensor.is_quantized:
            yield Finding("tensor", path, "quantized tensors are not stored; keep the model in floating point")
        elif _overlaps(tensor):
            yield Finding("tensor", path, "several of its elements share one place in memory; clone() it")
        elif _gone(tensor.device):
            yield Finding("device", path, f"on {tensor.device}, which this process does not have; move it")


def _overlaps(tensor: torch.Tensor) -> bool:
    """An expanded tensor: it can be read, but not be filled again."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _gone(device: torch.device) -> bool:
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    return count is not None and (device.index or 0) >= count()


def _averages(tracked: Tracked) -> Iterator[Finding]:
    live = {
        _memory(parameter)
        for name, model in tracked.models.items()
        if not is_average(name)
        for parameter in model.parameters()
    } - {0}
    for name, item in {**tracked.models, **tracked.others}.items():
        if is_average(name) and any(_memory(tensor) in live for tensor in _tensors(_state(item))):
            yield Finding("ema", name, "holds the live model's own tensors, so it averages nothing; clone them")


def _unsaved_buffers(tracked: Tracked) -> Iterator[Finding]:
    for name, model in tracked.models.items():
        kept = model.state_dict().keys()
        left = [names.clean(model, key) for key, _ in model.named_buffers(remove_duplicate=False) if key not in kept]
        if left:
            text = f"buffers that its state leaves out ({some(left)}) must be the same in every attempt"
            yield Finding("unsaved_buffers", name, text, NOTE)


def _layout(tracked: Tracked) -> Iterator[Finding]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch.distributed.get_world_size() == 1:
        return
    replicas = ddp.replicas(tracked.models)
    for name, model in tracked.models.items():
        inside = any(path == name or path.startswith(f"{name}.") for path in replicas)
        if not inside and not any(names.is_sharded(parameter) for parameter in model.parameters()):
            text = "neither DDP nor sharded: each rank stores it whole, and it can only come back on as many ranks"
            text += "; where DDP wraps it, track what DDP gave"
            yield Finding("layout", name, text, NOTE)


def _all_tensors(tracked: Tracked) -> Iterator[tuple[str, torch.Tensor]]:
    for name, model in tracked.models.items():
        for key, value in names.state(model).items():
            if isinstance(value, torch.Tensor):
                yield f"{name}/{key}", value
    for name, optimizer in tracked.optimizers.items():
        yield from ((name, tensor) for tensor in _tensors(optimizer.state))
    for name, item in tracked.others.items():
        yield from ((name, tensor) for tensor in _tensors(_state(item)))


def _state(item: Any) -> Any:
    return item.state_dict()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


def _memory(tensor: torch.Tensor) -> int:
    """The address of the memory behind it, 0 if there is none."""
    to_local = getattr(tensor, "to_local", None)
    local = to_local() if to_local is not None else tensor
    if local.layout is not torch.strided:
        return 0
    address: int = local.untyped_storage().data_ptr()
    return address


def _is_function(value: Any) -> bool:
    """As `LambdaLR.state_dict` decides what it drops."""
    return hasattr(value, "__code__")


_CHECKS = (
    _values,
    _tensor_kinds,
    _optimizer_parameters,
    _schedulers,
    _averages,
    _layout,
    _scheduler_functions,
    _unsaved_buffers,
)
