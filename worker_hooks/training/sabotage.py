"""Damage on purpose, between load and verification, so that a demo can show the verification catching it.

`RELUME_SABOTAGE=rng|data|lr|weights`. Without that variable nothing here does anything.
"""

from collections.abc import Iterable

import torch

KINDS = ("rng", "data", "lr", "weights")


class Sabotage:
    def __init__(self, kind: str | None) -> None:
        if kind is not None and kind not in KINDS:
            raise ValueError(f"RELUME_SABOTAGE={kind} is none of {', '.join(KINDS)}")
        self._kind = kind

    def weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """One value of one parameter, by the least the type can show."""
        if self._kind == "weights":
            first = next(tensor for tensor in tensors if tensor.numel()).detach().view(-1)[:1]
            first.copy_(torch.nextafter(first, torch.full_like(first, torch.inf)))

    def learning_rate(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        if self._kind == "lr":
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] *= 1.01

    def batches(self, consumed: int) -> int:
        """One batch too few; from the beginning of an epoch one too many."""
        if self._kind != "data":
            return consumed
        return consumed - 1 if consumed else 1

    def random(self) -> None:
        """One draw too many."""
        if self._kind == "rng":
            torch.rand(1)
