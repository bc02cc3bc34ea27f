"""Findings about what is alive in this process and not tracked: optimizers, schedulers, scalers, averages, iterators.

The garbage collector's list is read at most twice in a run, at the first save, up to a bound: a program with more
objects than that is looked at in part. Only what provably belongs to the tracked state counts.
"""

import gc
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data.dataloader import _BaseDataLoaderIter

from worker_hooks.training.lint.findings import NOTE, Finding
from worker_hooks.training.lint.state import is_scheduled, unkept
from worker_hooks.training.state.tracked import Tracked, is_average

LIMIT = 4_000_000
DEPTH, WIDTH = 4, 256
_KINDS = (torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, AveragedModel, _BaseDataLoaderIter)
_OTHERS_OWN = (torch.optim.Optimizer, torch.nn.Module, torch.Tensor, type, str, bytes, int, float)


def look(tracked: Tracked) -> list[Finding]:
    found = list(_look(tracked, alive()))
    if any(finding.level != NOTE for finding in found):
        # What the script threw away may still wait for the collector (a scheduler and its optimizer are a cycle).
        gc.collect()
        found = list(_look(tracked, alive()))
    return found


def early_iterators(tracked: Tracked) -> Iterator[Finding]:
    """A loader with a state of its own that is being iterated already would ignore the state that is loaded now."""
    for name, loader in tracked.loaders.items():
        if callable(getattr(loader, "load_state_dict", None)) and getattr(loader, "_iterator", None) is not None:
            text = "an iterator of it exists before its state is loaded, and would go on elsewhere; restore first"
            yield Finding("iterator", name, text)


def alive() -> list[Any]:
    """The objects of the kinds that matter. By type, without asking the objects, which may answer for others."""
    matters: dict[type, bool] = {}
    found = []
    for item in islice(gc.get_objects(), LIMIT):
        kind = type(item)
        if kind not in matters:
            matters[kind] = issubclass(kind, _KINDS)
        if matters[kind]:
            found.append(item)
    return found


def _look(tracked: Tracked, objects: list[Any]) -> Iterator[Finding]:
    yield from _optimizers(tracked, [item for item in objects if isinstance(item, torch.optim.Optimizer)])
    yield from _schedulers(tracked, [item for item in objects if isinstance(item, LRScheduler)])
    yield from _scalers(tracked, [item for item in objects if isinstance(item, torch.amp.GradScaler)])
    yield from _averages(tracked, [item for item in objects if isinstance(item, AveragedModel)])
    yield from _positions(tracked, any(isinstance(item, _BaseDataLoaderIter) for item in objects))


def _optimizers(tracked: Tracked, optimizers: list[torch.optim.Optimizer]) -> Iterator[Finding]:
    held = {id(p) for known in tracked.optimizers.values() for p in _parameters(known)}
    others = [item for item in optimizers if not any(item is known for known in tracked.optimizers.values())]
    for name, model in tracked.models.items():
        free = {id(p) for p in model.parameters() if p.requires_grad} - held
        for optimizer in others:
            if free & {id(p) for p in _parameters(optimizer)}:
                kind = type(optimizer).__name__
                yield Finding("optimizer", name, f"a {kind} updates it that is not tracked; track(optimizer=…)")
                break
        else:
            if free and not held & {id(p) for p in model.parameters()} and not is_average(name):
                yield Finding("optimizer", name, "has parameters to train and no tracked optimizer", NOTE)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _schedulers(tracked: Tracked, schedulers: list[LRScheduler]) -> Iterator[Finding]:
    """A plateau scheduler leaves no mark in the groups, by which the others are found. Where one is tracked, another
    may drive the optimizer beside it or in its place: one that was built again, or a warm-up."""
    held = _held(tracked)
    for name, optimizer in tracked.optimizers.items():
        driving = [item for item in schedulers if getattr(item, "optimizer", None) is optimizer]
        kinds = [type(item).__name__ for item in driving if id(item) not in held and _has_stepped(item)]
        marked = any("initial_lr" in group for group in optimizer.param_groups)
        if is_scheduled(tracked, optimizer):
            if kinds:
                yield Finding(
                    "scheduler", name, f"a {kinds[0]} drives it too that is not tracked; track(scheduler=[…])"
                )
        elif driving and not marked:
            kind = type(driving[0]).__name__
            yield Finding("scheduler", name, f"a {kind} drives it that is not tracked; track(scheduler=…)")


def _has_stepped(scheduler: Any) -> bool:
    """Since it was built. Some kinds count their steps, the others begin at 0."""
    count = getattr(scheduler, "_step_count", None)
    return count > 1 if isinstance(count, int) else getattr(scheduler, "last_epoch", 0) > 0


def _held(tracked: Tracked) -> set[int]:
    """The tracked objects that are neither models nor optimizers, and what lies in their attributes, short lists and
    dicts: schedulers made of others, and wrappers around them."""
    found: set[int] = set()
    level: list[Any] = list(tracked.others.values())
    for _ in range(DEPTH):
        level = [item for item in level if id(item) not in found and not isinstance(item, _OTHERS_OWN)]
        found.update(map(id, level))
        level = [inner for item in level for inner in _inside(item)]
    return found


def _inside(item: Any) -> list[Any]:
    found = item if isinstance(item, list | tuple | dict) else getattr(item, "__dict__", {})
    return list(found.values() if isinstance(found, dict) else found) if len(found) <= WIDTH else []


def _scalers(tracked: Tracked, scalers: list[torch.amp.GradScaler]) -> Iterator[Finding]:
    """One that is switched off, or that nothing was ever scaled with, has no state."""
    known = list(tracked.others.values())
    used = [item for item in scalers if item.is_enabled() and item._scale is not None]
    if any(not any(item is tracked_one for tracked_one in known) for item in used):
        yield Finding("scaler", "scaler", "a GradScaler is in use and not tracked; track(scaler=…)")


def _averages(tracked: Tracked, averages: list[AveragedModel]) -> Iterator[Finding]:
    """torch's own kind: by its shapes it is known whose average it is. One that has averaged nothing has no state."""
    models = [[parameter.shape for parameter in model.parameters()] for model in tracked.models.values()]
    for item in averages:
        own = list(item.parameters())
        if own and [parameter.shape for parameter in own] in models and unkept(tracked, own) and int(item.n_averaged):
            text = "an AveragedModel of a tracked model is in use and not tracked; track(ema=…)"
            yield Finding("ema", "ema", text)
            return


def _positions(tracked: Tracked, iterating: bool) -> Iterator[Finding]:
    if tracked.loaders:
        return
    if iterating:
        text = "a DataLoader is being iterated and none is tracked, so samples come twice or never; track(loader=…)"
        yield Finding("data_position", "loader", text)
    else:
        yield Finding("data_position", "loader", "no loader is tracked; the script must know its own place", NOTE)
