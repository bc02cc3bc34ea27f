"""Are the same tensors in the same places as when a module or an optimizer was last looked at?

Asking is much cheaper than looking again, where there are thousands of small tensors: so whole lists are compared, not
one thing at a time. Identity decides, place by place: a parameter, a buffer, a submodule or a state tensor that was put
in another's place is noticed. What is kept are weak references, or memory that the run has let go of would stay.
A module that makes its state dict in its own way (hooks, overridden methods, extra state) never counts as the same,
nor does an optimizer with other values than tensors.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, call, is_
from typing import Any
from weakref import ref

import torch
from torch import nn

_OWN_WAYS = ("state_dict", "_save_to_state_dict", "get_extra_state")
_PLACES = (attrgetter("_modules"), attrgetter("_parameters"), attrgetter("_buffers"))
_SKIPPED = attrgetter("_non_persistent_buffers_set")
_HOOKS = (attrgetter("_state_dict_hooks"), attrgetter("_state_dict_pre_hooks"))
_KIND = attrgetter("dtype", "shape")


class Dicts:
    """What many dicts hold: their keys, and the very same tensors, modules or None under them."""

    def __init__(self, now: list[dict[Any, Any]]) -> None:
        self._lengths = list(map(len, now))
        self._keys = list(chain.from_iterable(now))
        self._values = references(chain.from_iterable(map(dict.values, now)))

    def same(self, now: list[dict[Any, Any]]) -> bool:
        return (
            list(map(len, now)) == self._lengths
            and all(map(is_, chain.from_iterable(now), self._keys))
            and all(map(is_, chain.from_iterable(map(dict.values, now)), map(call, self._values)))
        )


class ModuleTree:
    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._plain = all(map(_is_plain, modules))
        self._modules = references(modules)
        self._held = [Dicts(list(map(place, modules))) for place in _PLACES]
        self._skipped = list(map(frozenset, map(_SKIPPED, modules)))

    def same(self) -> bool:
        modules: list[Any] = list(map(call, self._modules))
        return (
            self._plain
            and all(module is not None for module in modules)
            and not any(any(map(hooks, modules)) for hooks in _HOOKS)
            and all(held.same(list(map(place, modules))) for held, place in zip(self._held, _PLACES, strict=True))
            and list(map(_SKIPPED, modules)) == self._skipped
        )


class OptimizerTree:
    """The parameters of the groups, and every tensor of the state with its type and size. Settings may change."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        items: list[Any] = list(optimizer.state.values())
        values = list(chain.from_iterable(map(dict.values, items)))
        self._plain = all(value is None or isinstance(value, torch.Tensor) for value in values)
        self._groups = [references(group["params"]) for group in optimizer.param_groups]
        self._parameters = references(optimizer.state)
        self._state = Dicts(items) if self._plain else None
        self._kinds = _kinds(values) if self._plain else []

    def same(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._state is None or _tensor_settings(optimizer):
            return False
        groups = [group["params"] for group in optimizer.param_groups]
        items: list[Any] = list(optimizer.state.values())
        return (
            list(map(len, groups)) == list(map(len, self._groups))
            and all(map(is_, chain.from_iterable(groups), map(call, chain.from_iterable(self._groups))))
            and len(items) == len(self._parameters)
            and all(map(is_, optimizer.state, map(call, self._parameters)))
            and self._state.same(items)
            and _kinds(chain.from_iterable(map(dict.values, items))) == self._kinds
        )


def references(things: Iterable[Any]) -> list[Callable[[], Any]]:
    """Called, each gives the tensor or module, or None once that is gone. What is None stays None."""
    return [_nothing if thing is None else _reference(thing) for thing in things]


def _reference(thing: Any) -> Callable[[], Any]:
    return ref(thing) if isinstance(thing, torch.Tensor | nn.Module) else _nothing


def _nothing() -> None:
    return None


def _kinds(values: Iterable[Any]) -> list[Any]:
    return list(map(_KIND, (value for value in values if value is not None)))


def _tensor_settings(optimizer: torch.optim.Optimizer) -> bool:
    return any(isinstance(value, torch.Tensor) for group in optimizer.param_groups for value in group.values())


def _is_plain(module: nn.Module) -> bool:
    own = any(getattr(type(module), name) is not getattr(nn.Module, name) for name in _OWN_WAYS)
    return not own and not any(hooks(module) for hooks in _HOOKS) and "state_dict" not in vars(module)
