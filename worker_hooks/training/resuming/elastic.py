"""Another number of ranks than at the save: what becomes of the global batch and of the learning rate.

Nothing of it is guessed. Without a policy the resume is refused, with the numbers that the choice is about:

    keep_global_batch   more or fewer batches per update, so that an update sees as many samples as before
    scale_lr:linear     as many batches per update as before; the learning rate follows the global batch
    scale_lr:sqrt       the same, by the square root of the ratio
    keep_lr             as many batches per update as before, the learning rate stays: the script knows what it does
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.resuming.candidates import Source

POLICIES = ("keep_global_batch", "scale_lr:linear", "scale_lr:sqrt", "keep_lr")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


class ElasticRefused(CheckpointError):
    """The number of ranks changed and no policy, or one that the numbers do not allow, was stated."""


@dataclass(frozen=True)
class Batch:
    """`micro`: samples in one batch of one rank, None if no tracked loader says. `accumulation`: batches per update."""

    ranks: int
    micro: int | None
    accumulation: int

    @property
    def total(self) -> int | None:
        """Samples per update of the whole job."""
        return None if self.micro is None else self.ranks * self.micro * self.accumulation

    def __str__(self) -> str:
        ranks = _ranks(self.ranks)
        if self.micro is None:
            return f"{ranks}, a batch size that no tracked loader tells"
        return f"{ranks} x micro batch {self.micro} x accumulation {self.accumulation} = global batch {self.total}"


@dataclass(frozen=True)
class Plan:
    """How to go on: batches per update, and what the learning rates are multiplied by after the verification."""

    accumulation: int
    lr_factor: float


def checked(policy: Any) -> str | None:
    """Raises ValueError for what is no policy; None and False state none."""
    if policy is None or policy is False:
        return None
    if policy not in POLICIES:
        raise ValueError(f"elastic={policy!r} is none of {', '.join(POLICIES)}")
    return str(policy)


def plan_for(
    policy: str | None, source: Source, ranks: int, loader: str | None, global_batch: int | None
) -> Plan | None:
    """What going on with `ranks` makes of the checkpoint's global batch; None for as many as it was saved with.

    `global_batch`: of the first tracked loader now, whose name is `loader`. Raises ElasticRefused.
    """
    before, data = source.manifest.world_size, source.first.data
    if before == ranks:
        return None
    saved = data["loaders"].get(loader, {}).get("global_batch")
    return plan(
        policy,
        Batch(before, None if saved is None else saved // before, int(data.get("accumulation") or 1)),
        Batch(ranks, None if global_batch is None else global_batch // ranks, 1),
    )


def plan(policy: str | None, saved: Batch, now: Batch) -> Plan:
    """Raises ElasticRefused with both sides' numbers, and what could be had. The same on every rank."""
    if policy is None:
        raise ElasticRefused(
            f"saved with {saved}; now {now}. {_nearest(saved, now)}"
            f"State what is to become of it: Run(elastic=…), one of {', '.join(POLICIES)}"
        )
    if policy == "keep_global_batch":
        return Plan(_kept(saved, now), 1.0)
    if policy == "keep_lr":
        return Plan(saved.accumulation, 1.0)
    if saved.total is None or now.micro is None:
        raise ElasticRefused(f"elastic={policy!r} needs both global batches: saved with {saved}; now {now}")
    ratio = now.ranks * now.micro * saved.accumulation / saved.total
    return Plan(saved.accumulation, ratio if policy == "scale_lr:linear" else ratio**0.5)


def _kept(saved: Batch, now: Batch) -> int:
    if saved.total is None or now.micro is None:
        raise ElasticRefused(f"a global batch that nobody knows cannot be kept: saved with {saved}; now {now}")
    accumulation, rest = divmod(saved.total, now.ranks * now.micro)
    if rest or not accumulation:
        raise ElasticRefused(f"saved with {saved}. {_nearest(saved, now)}Choose another micro batch or another policy")
    return accumulation


def _nearest(saved: Batch, now: Batch) -> str:
    """A sentence with the global batches that this number of ranks can have beside the wanted one."""
    if saved.total is None or now.micro is None:
        return ""
    together = now.ranks * now.micro
    count, rest = divmod(saved.total, together)
    can = f"{_ranks(now.ranks)} x micro batch {now.micro}"
    if not rest:
        return f"Global batch {saved.total} is {count} accumulated batches of {can}. "
    near = [together * times for times in (count, count + 1) if times]
    return f"Global batch {saved.total} cannot be kept with {can}: {' or '.join(map(str, near))}. "


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def scale(optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Any], factor: float) -> None:
    """Multiply every learning rate, also those that schedulers count from."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for key in _RATES:
                if isinstance(group.get(key), torch.Tensor):
                    group[key].mul_(factor)
                elif isinstance(group.get(key), int | float):
                    group[key] = group[key] * factor
    for scheduler in _schedulers(others):
        for name in ("base_lrs", "_last_lr", "min_lrs"):
            if isinstance(getattr(scheduler, name, None), list):
                setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])


def _schedulers(others: Iterable[Any]) -> Iterable[Any]:
    for item in others:
        yield item
        yield from _schedulers(getattr(item, "_schedulers", ()))
