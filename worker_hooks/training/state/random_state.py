"""The random state of one rank: Python's, numpy's if it was imported, torch's, and the device's."""

import base64
import random
import sys
from typing import Any

import torch

from worker_hooks.training.files.digests import raw_bytes, value_digest
from worker_hooks.training.state.codec import decode, encode

State = dict[str, Any]


def capture() -> State:
    """Every generator's state as JSON values. Reading draws no number."""
    state: State = {"python": encode(random.getstate(), "python", {}), "torch": _pack(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _pack(torch.cuda.get_rng_state())
    return state


def restore(state: State) -> None:
    """Set every generator that the state knows. Call it last: creating an iterator draws from torch's generator."""
    random.setstate(decode(state["python"], {}))
    torch.set_rng_state(_unpack(state["torch"]))
    if "numpy" in state:
        import numpy

        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_unpack(state["cuda"]))


def digests(state: State) -> dict[str, str]:
    """One short digest per generator, so that a report can say which one differs."""
    return {name: value_digest(value) for name, value in state.items()}


def _pack(state: torch.Tensor) -> str:
    return base64.b64encode(raw_bytes(state)).decode()


def _unpack(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
