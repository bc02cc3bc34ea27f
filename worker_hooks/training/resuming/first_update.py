"""The learning rates that the first update after a resume is made with: were they changed since they were verified?

A script may build its scheduler again, or set a rate by hand, after the verification is over; without a tracked loader
it is over when the restore is. So each tracked optimizer is looked at once more as it takes its first step. What is
found there is judged by who may rightly change a rate:

- a tracked scheduler that says this very rate changed it itself: nothing to tell;
- another rate than a tracked scheduler of this optimizer says: that one drives nothing any more. DEGRADED, and FAIL
  beyond a tenth, which is more than a warm-up by hand adds in a step once it has taken ten;
- a script that sets its rates by hand does so before each update, a little each time: told beyond a tenth, DEGRADED.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from worker_hooks.training.resuming.verify import DEGRADED, FAIL, LR_TOLERANCE, Check, rates_said
from worker_hooks.training.state.fingerprint import rates_of
from worker_hooks.training.state.tracked import Tracked

BY_HAND = 0.1


def watch(tracked: Tracked, found: Callable[[Check], None]) -> None:
    """Calls `found` from within an optimizer's first step, before it changes anything; it may raise."""
    for name, optimizer in tracked.optimizers.items():
        # A wrapper that only passes for an optimizer has no hooks.
        if hasattr(optimizer, "_optimizer_step_pre_hooks"):
            _watch(name, optimizer, tracked, found)


def _watch(name: str, optimizer: torch.optim.Optimizer, tracked: Tracked, found: Callable[[Check], None]) -> None:
    waiting: list[float] | None = rates_of(optimizer)

    def first_step(*_: Any) -> None:
        # The hook stays: to take it out while the optimizer goes through its hooks would break those of others.
        nonlocal waiting
        verified, waiting = waiting, None
        if verified is not None:
            check = judge(name, verified, rates_of(optimizer), list(_said(tracked, optimizer)))
            if check is not None:
                found(check)

    optimizer.register_step_pre_hook(first_step)


def judge(name: str, verified: list[float], now: list[float], said: list[list[float]]) -> Check | None:
    """`said`: what each tracked scheduler of this optimizer says its rates are."""
    far = len(verified) != len(now) or not _close(verified, now, BY_HAND)
    why = rates_said(verified, now, "as verified", "at the first update")
    if why is None or not (said or far):
        return None
    if any(_close(rates, now, LR_TOLERANCE) for rates in said if len(rates) == len(now)):
        return None
    before, after = ([rate.hex() for rate in rates] for rates in (verified, now))
    outcome = FAIL if said and far else DEGRADED
    return Check("learning_rate", outcome, before, after, "LR_JUMP", f"{name}: {why}")


def _close(before: list[float], after: list[float], tolerance: float) -> bool:
    return all(math.isclose(*pair, rel_tol=tolerance) for pair in zip(before, after, strict=True))


def _said(tracked: Tracked, optimizer: torch.optim.Optimizer) -> Iterator[list[float]]:
    for item in tracked.others.values():
        if getattr(item, "optimizer", None) is optimizer and callable(getattr(item, "get_last_lr", None)):
            yield [float(rate) for rate in item.get_last_lr()]
