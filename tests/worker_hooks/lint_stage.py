"""Small objects for tests of the lint, which looks at what is alive: nothing of an earlier test may be left over."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """What another test left behind is not alive."""
    gc.collect()
    yield
    gc.collect()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data() -> TensorDataset:
    return TensorDataset(torch.randn(24, 2), torch.randn(24, 1))


class Average:
    def __init__(self, values: list[torch.Tensor]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": {"values": self.values}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["shadow"]["values"]
