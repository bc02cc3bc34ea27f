"""Names of parameters and buffers that do not change with the wrapper: the keys of `get_model_state_dict`."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_COMPILED = "_orig_mod"
_CHECKPOINTED = "_checkpoint_wrapped_module"


# A wrapper puts a component into the names, so a name that is the same still means the same.
_known: "WeakKeyDictionary[nn.Module, dict[str, str]]" = WeakKeyDictionary()


def clean(model: nn.Module, name: str) -> str:
    """`name` without the components that DDP, torch.compile and activation checkpointing put in."""
    known = _known.setdefault(model, {})
    if name not in known:
        known[name] = _clean(model, name)
    return known[name]


def _clean(model: nn.Module, name: str) -> str:
    kept, module = [], model
    *path, last = name.split(".")
    for part in path:
        if not _is_wrapping(module, part):
            kept.append(part)
        child = getattr(module, part, None)
        if not isinstance(child, nn.Module):
            return name  # a name that a state-dict hook made up
        module = child
    return ".".join([*kept, last])


def _is_wrapping(module: nn.Module, part: str) -> bool:
    if isinstance(module, DistributedDataParallel):
        return part == "module"
    return part in (_COMPILED, _CHECKPOINTED)


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter under each of its names (tied ones have several)."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield clean(model, name), parameter


def state(model: nn.Module) -> dict[str, object]:
    """The model's state dict under clean names; its tensors share memory with the model's, or are the model's own."""
    ours = type(model).state_dict is nn.Module.state_dict and "state_dict" not in vars(model)
    state = model.state_dict(keep_vars=True) if ours else model.state_dict()
    return {clean(model, name): value for name, value in state.items()}


def is_sharded(tensor: torch.Tensor) -> bool:
    """A DTensor: each rank stores its own part under the shared name."""
    return hasattr(tensor, "to_local")
