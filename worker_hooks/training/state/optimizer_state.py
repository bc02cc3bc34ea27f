"""An optimizer's state under parameter names instead of numbers.

`torch.distributed`'s own reader of optimizer state takes a step on a fresh optimizer; this one only looks.
`Optimizer.load_state_dict` casts state to the parameter's type; this one puts back the stored bits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.state import names
from worker_hooks.training.state.codec import Tensors, decode, encode


class OptimizerState:
    """Raises CheckpointError for state that belongs to no parameter: it has no name under which it could come back."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, models: Mapping[str, nn.Module]) -> None:
        self._name = name
        self._optimizer = optimizer
        self._names = _parameter_names(optimizer, models)
        strange = [key for key in optimizer.state if key not in self._names]
        if strange:
            said = ", ".join(repr(key) if isinstance(key, str) else type(key).__name__ for key in strange[:4])
            raise CheckpointError(f"{name}: its state has entries of no parameter in its groups ({said})")

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """(key, tensor, the parameter it belongs to) for every tensor of the state and of the groups."""
        for parameter, state in self._optimizer.state.items():
            for key, value in state.items():
                yield from ((path, tensor, parameter) for path, tensor in _inside(self._key(parameter, key), value))
        for index, group in enumerate(self._optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, torch.Tensor) and group["params"]:
                    yield f"{self._name}/group.{index}.{key}", value, group["params"][0]

    def values(self, described: dict[str, Any] | None = None) -> dict[str, Any]:
        """JSON: the groups' settings and parameter names, the state's other values, and where each tensor lives.

        `described`: the state as it was told before, where nothing in it has changed.
        """
        groups = [self._group(index, group) for index, group in enumerate(self._optimizer.param_groups)]
        return {"groups": groups, "state": self._describe_state() if described is None else described}

    def _describe_state(self) -> dict[str, Any]:
        return {
            self._names[parameter]: {key: _describe(value, self._key(parameter, key)) for key, value in items.items()}
            for parameter, items in self._optimizer.state.items()
        }

    def targets(self, stored: Mapping[str, Any]) -> Tensors:
        """Tensors of the stored types and places, to be filled: the optimizer's own where they are such, so that a load
        needs no fresh memory, new ones otherwise. Raises CheckpointMismatch if groups differ."""
        groups = self.values()["groups"]
        if [group["params"] for group in groups] != [group["params"] for group in stored["groups"]]:
            raise CheckpointMismatch(f"{self._name}: the parameter groups are others than at the save")
        found: Tensors = {}
        parameters = {name: parameter for parameter, name in self._names.items()}
        room = _Room(self.tensors(), parameters.values())
        for name, items in stored["state"].items():
            parameter = parameters[name]
            for key, item in items.items():
                found.update(_targets(self._key(parameter, key), item, parameter, room))
        for index, group in enumerate(self._optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    found[f"{self._name}/group.{index}.{key}"] = value.detach()
        return found

    def restore(self, stored: Mapping[str, Any], tensors: Tensors) -> None:
        """Put everything back; state that the checkpoint does not have is dropped."""
        parameters = {name: parameter for parameter, name in self._names.items()}
        self._optimizer.state.clear()
        for name, items in stored["state"].items():
            parameter = parameters[name]
            self._optimizer.state[parameter] = {
                key: _rebuilt(self._key(parameter, key), item, tensors) for key, item in items.items()
            }
        for group, saved in zip(self._optimizer.param_groups, stored["groups"], strict=True):
            for key, value in saved["settings"].items():
                if not isinstance(group.get(key), torch.Tensor):
                    group[key] = decode(value, tensors)

    def _group(self, index: int, group: Mapping[str, Any]) -> dict[str, Any]:
        path = f"{self._name}/group.{index}"
        settings = {
            key: {"$": "tensor", "key": f"{path}.{key}"}
            if isinstance(value, torch.Tensor)
            else encode(value, f"{path}.{key}", None)
            for key, value in group.items()
            if key != "params"
        }
        return {"params": [self._names[parameter] for parameter in group["params"]], "settings": settings}

    def _key(self, parameter: torch.Tensor, key: str) -> str:
        return f"{self._name}/{self._names[parameter]}/{key}"


def _inside(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor, or those in a list of them (L-BFGS keeps its history so)."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _inside(f"{path}.{index}", item)


def _describe(value: Any, path: str) -> Any:
    if isinstance(value, list | tuple) and next(_inside(path, value), None) is not None:
        items = [_describe(item, f"{path}.{index}") for index, item in enumerate(value)]
        return {"$": "sequence", "tuple": isinstance(value, tuple), "items": items}
    if not isinstance(value, torch.Tensor):
        return encode(value, path, None)
    return {
        "$": "state",
        "dtype": str(value.dtype).removeprefix("torch."),
        "size": list(value.shape),
        "like": names.is_sharded(value),
        "cpu": value.device.type == "cpu",
    }


class _Room:
    """Memory of an optimizer's state that may be filled in place: no two tensors of it share any."""

    def __init__(
        self, present: Iterator[tuple[str, torch.Tensor, torch.Tensor]], parameters: Iterable[torch.Tensor]
    ) -> None:
        self._present = {path: tensor for path, tensor, _ in present}
        self._taken = {_memory(parameter) for parameter in parameters}

    def take(self, path: str, wanted: Callable[[torch.Tensor], bool]) -> torch.Tensor | None:
        tensor = self._present.get(path)
        if tensor is None or not wanted(tensor) or not tensor.is_contiguous() or tensor.is_inference():
            return None
        memory = _memory(tensor)
        if memory in self._taken:
            return None
        self._taken.add(memory)
        return tensor.detach()


def _memory(tensor: torch.Tensor) -> tuple[torch.device, int]:
    """Where it begins; that of an allocation, so that two views of one count as the same."""
    local = tensor.to_local() if names.is_sharded(tensor) else tensor
    return local.device, local.untyped_storage().data_ptr()


def _targets(path: str, item: Any, parameter: torch.Tensor, room: _Room) -> Iterator[tuple[str, torch.Tensor]]:
    kind = item.get("$") if isinstance(item, dict) else None
    if kind == "state":
        yield path, _target(path, item, parameter, room)
    for index, inner in enumerate(item["items"]) if kind == "sequence" else ():
        yield from _targets(f"{path}.{index}", inner, parameter, room)


def _target(path: str, item: Mapping[str, Any], parameter: torch.Tensor, room: _Room) -> torch.Tensor:
    """Sharded like its parameter where it was at the save, or where the parameter has become so since."""
    dtype = getattr(torch, item["dtype"])
    if item["like"] or (names.is_sharded(parameter) and item["size"] == list(parameter.shape)):
        present = room.take(path, lambda tensor: tensor.dtype == dtype and _placed_like(tensor, parameter))
        return torch.empty_like(parameter, dtype=dtype).detach() if present is None else present
    device = torch.device("cpu") if item["cpu"] else parameter.device
    kind = dtype, tuple(item["size"]), device, False
    present = room.take(path, lambda one: (one.dtype, tuple(one.shape), one.device, names.is_sharded(one)) == kind)
    return torch.empty(item["size"], dtype=dtype, device=device) if present is None else present


def _placed_like(tensor: Any, parameter: Any) -> bool:
    """Sharded over the same mesh in the same way."""
    if not (names.is_sharded(tensor) and names.is_sharded(parameter)):
        return False
    mine, its = ((one.shape, one.placements, one.device_mesh) for one in (tensor, parameter))
    return bool(mine == its)


def _rebuilt(path: str, item: Any, tensors: Tensors) -> Any:
    kind = item.get("$") if isinstance(item, dict) else None
    if kind == "state":
        return tensors[path]
    if kind != "sequence":
        return decode(item, tensors)
    items = [_rebuilt(f"{path}.{index}", inner, tensors) for index, inner in enumerate(item["items"])]
    return tuple(items) if item["tuple"] else items


def _parameter_names(optimizer: torch.optim.Optimizer, models: Mapping[str, nn.Module]) -> dict[torch.Tensor, str]:
    """Clean model names; a parameter of no tracked model is named by its place in the optimizer."""
    known: dict[torch.Tensor, str] = {}
    for model_name, model in models.items():
        for name, parameter in names.parameters(model):
            known.setdefault(parameter, f"{model_name}:{name}")
    found = {}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            found[parameter] = known.get(parameter, f"group.{index}.{position}")
    return found
