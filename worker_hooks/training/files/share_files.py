"""What the writer and the reader of a rank's share agree on: names, alignment, and DCP without its collectives."""

import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

DATA = "tensors.bin"
INDEX = "index.json"
ALIGN = 64
BLOCK = 4096


def alone(call: Any, state: dict[str, torch.Tensor], **options: Any) -> None:
    """DCP without its collectives. It warns that it assumes a single process: here that is the intention."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*intent is to (save|load) in a single process.*")
            call(state, no_dist=True, **options)
    except dcp.CheckpointException as error:
        cause = next(iter(error.failures.values()), (error,))[0]
        raise cause from None
