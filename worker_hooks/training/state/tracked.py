"""What a training job consists of: the tracked objects, taken apart into named tensors and JSON values, and put back.

Three homes for a tensor, because whatever differs by rank must never share a key:
- `shared`: the same on every rank because DDP makes it so, or sharded (DTensor): one key, written once;
- `own`: everything else: one key per rank;
- JSON values go into the rank's own file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.state import ddp, names
from worker_hooks.training.state.codec import Tensors, decode, encode
from worker_hooks.training.state.kept_parts import KeptModels, KeptOptimizer, Piece
from worker_hooks.training.state.optimizer_state import OptimizerState


@dataclass
class Parts:
    """`values` by name of the object, or by path for a module's extra state. `from_rank_zero`: shared buffers."""

    shared: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    from_rank_zero: set[str] = field(default_factory=set)

    def put(self, pieces: Iterable[Piece]) -> None:
        for path, tensor, shared in pieces:
            (self.shared if shared else self.own)[path] = tensor.detach()


class Tracked:
    """The objects by name: `model`, `model.0` (lists), `model.generator` (dicts), `optimizer`, …, and extras."""

    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.loaders: dict[str, Any] = {}
        self.others: dict[str, Any] = {}
        self._kept: KeptModels | None = None
        self._kept_optimizers: dict[str, KeptOptimizer] = {}

    def add(self, name: str, value: Any) -> None:
        """Raises TypeError for an object whose state nobody can read."""
        for key, item in _spread(name, value):
            if isinstance(item, nn.Module):
                self.models[key] = item
            elif isinstance(item, torch.optim.Optimizer):
                _refuse_sharding(key, item)
                self.optimizers[key] = item
            elif name == "loader":
                self.loaders[key] = item
            elif callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None)):
                self.others[key] = item
            else:
                raise TypeError(f"track({name}=…): {type(item).__name__} has no state_dict and load_state_dict")

    def __bool__(self) -> bool:
        return bool(self.models or self.optimizers or self.others or self.loaders)

    # --- reading ------------------------------------------------------------------------------------------------

    def collect(self, world_size: int) -> Parts:
        """References, not copies; nothing is changed by looking (a fresh optimizer stays without state).

        What was found is kept: where every tensor is still in its place the next call only takes them up again.
        """
        parts, home = Parts(), None
        if self._kept is None or not self._kept.holds(self.models, world_size):
            home, self._kept_optimizers = _Homes(self.models, world_size), {}
            self._kept = self._look(parts, home, world_size)
        else:
            self._kept.put(parts.shared, parts.own)
        parts.from_rank_zero = set(self._kept.from_rank_zero)
        for name, optimizer in self.optimizers.items():
            kept = self._kept_optimizers.get(name)
            if kept is not None and kept.holds(optimizer):
                parts.values[name] = kept.values()
                kept.put(parts.shared, parts.own)
            else:
                home = home or _Homes(self.models, world_size)
                self._kept_optimizers[name] = self._look_at(parts, name, optimizer, home)
        for name, item in self.others.items():
            parts.values[name] = encode(item.state_dict(), name, parts.own)
        return parts

    def _look(self, parts: Parts, home: "_Homes", world_size: int) -> KeptModels:
        pieces: list[Piece] = []
        for name, model in self.models.items():
            for key, value in names.state(model).items():
                path = f"{name}/{key}"
                if isinstance(value, torch.Tensor):
                    pieces.append((path, value, home.is_shared(value)))
                else:
                    parts.values[path] = encode(value, path, parts.own)
        parts.put(pieces)
        return KeptModels(self.models, pieces, set(self.buffers(world_size)[0]), world_size)

    def _look_at(self, parts: Parts, name: str, optimizer: torch.optim.Optimizer, home: "_Homes") -> KeptOptimizer:
        state = OptimizerState(name, optimizer, self.models)
        pieces = [(path, value, home.is_shared(parameter)) for path, value, parameter in state.tensors()]
        parts.put(pieces)
        parts.values[name] = values = state.values()
        return KeptOptimizer(optimizer, state, values, pieces)

    def parameters(self) -> Tensors:
        """What the `parameters` fingerprint covers: every parameter of every tracked module."""
        found: Tensors = {}
        for name, model in self.models.items():
            found.update({f"{name}/{key}": parameter.detach() for key, parameter in names.parameters(model)})
        return found

    def trained(self) -> set[str]:
        """Names of the parameters that an update changes: those must be numbers. A frozen one may be a mask of minus
        infinity, as a buffer may; and what an optimizer keeps is its own affair."""
        updated = {
            id(p) for optimizer in self.optimizers.values() for group in optimizer.param_groups for p in group["params"]
        }
        return {
            f"{name}/{key}"
            for name, model in self.models.items()
            for key, parameter in names.parameters(model)
            if parameter.requires_grad or id(parameter) in updated
        }

    def buffers(self, world_size: int) -> tuple[Tensors, Tensors]:
        """(buffers DDP takes from rank 0, buffers of this rank's own), without caches that no state dict holds."""
        home = _Homes(self.models, world_size)
        shared: Tensors = {}
        own: Tensors = {}
        for name, model in self.models.items():
            buffers = list(model.named_buffers(remove_duplicate=False))
            kept = model.state_dict().keys() if buffers else ()
            for key, buffer in buffers:
                if key not in kept:
                    continue
                place = shared if home.is_shared(buffer) else own
                place[f"{name}/{names.clean(model, key)}"] = buffer.detach()
        return shared, own

    def optimizer_tensors(self) -> Tensors:
        found: Tensors = {}
        for name, optimizer in self.optimizers.items():
            found.update({path: value for path, value, _ in OptimizerState(name, optimizer, self.models).tensors()})
        return found

    # --- putting back -------------------------------------------------------------------------------------------

    def targets(self, parts: Parts, values: Mapping[str, Any]) -> tuple[Tensors, Callable[[Tensors], None]]:
        """Tensors to fill from a checkpoint, and what to call when they are full.

        Model tensors are filled in place. `values` are the JSON values of the checkpoint. Raises CheckpointMismatch
        where the tracked objects are others than the stored ones.
        """
        missing = sorted(set(parts.values) - set(values))
        unknown = sorted(set(values) - set(parts.values))
        if missing or unknown:
            raise CheckpointMismatch(f"not in the checkpoint: {missing}; only in the checkpoint: {unknown}")
        fill: Tensors = {}
        for name, model in self.models.items():
            state = names.state(model).items()
            fill |= {f"{name}/{key}": value.detach() for key, value in state if isinstance(value, torch.Tensor)}
        for name, optimizer in self.optimizers.items():
            fill |= OptimizerState(name, optimizer, self.models).targets(values[name])
        return fill, lambda tensors: self._finish(values, tensors)

    def _finish(self, values: Mapping[str, Any], tensors: Tensors) -> None:
        for name, model in self.models.items():
            self._restore_extra_state(name, model, values, tensors)
        for name, optimizer in self.optimizers.items():
            OptimizerState(name, optimizer, self.models).restore(values[name], tensors)
        for name, item in self.others.items():
            state = decode(values[name], tensors)
            try:
                item.load_state_dict(state)
            except Exception as error:  # of the object's own kind
                said = f"{type(error).__name__}: {error}"
                raise CheckpointMismatch(
                    f"{name}: its load_state_dict does not take what was stored ({said})"
                ) from error

    def _restore_extra_state(self, name: str, model: nn.Module, values: Mapping[str, Any], tensors: Tensors) -> None:
        """Values that `get_extra_state` of a module gave; tensors are in place already and go through unchanged."""
        extra = {key: values[f"{name}/{names.clean(model, key)}"] for key in _extra_keys(model)}
        if extra:
            state = model.state_dict()
            model.load_state_dict(state | {key: decode(value, tensors) for key, value in extra.items()})


def is_average(name: str) -> bool:
    """By the name under which it is tracked."""
    return name.partition(".")[0] == "ema"


class _Homes:
    """Which tensors DDP keeps equal on every rank."""

    def __init__(self, models: dict[str, nn.Module], world_size: int) -> None:
        self._single = world_size == 1
        self._equal: set[Any] = set()
        for replica in ddp.replicas(models).values():
            equal = [*replica.parameters(), *(replica.buffers() if ddp.broadcasts_buffers(replica) else ())]
            self._equal |= {_memory(tensor) for tensor in equal if not names.is_sharded(tensor)}

    def is_shared(self, tensor: torch.Tensor) -> bool:
        return self._single or names.is_sharded(tensor) or _memory(tensor) in self._equal


def _memory(tensor: torch.Tensor) -> Any:
    """A state dict gives detached aliases: the same memory and shape means the same tensor. Empty ones never match."""
    return (tensor.data_ptr(), tensor.shape) if tensor.numel() else id(tensor)


def _extra_keys(model: nn.Module) -> list[str]:
    return [key for key, value in model.state_dict().items() if not isinstance(value, torch.Tensor)]


def _spread(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{name}.{key}", item
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield f"{name}.{index}", item
    else:
        yield name, value


def _refuse_sharding(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Its state differs by rank behind an interface that hides it."""
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        raise CheckpointError(f"{name}: ZeroRedundancyOptimizer is not supported; use FSDP2 or a plain optimizer")
