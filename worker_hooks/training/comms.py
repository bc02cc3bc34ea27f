"""Agreement between ranks at start and at resume: JSON over a gloo group of its own, never pickle.

A group of its own, on the CPU, so that a dead NCCL communicator cannot block it. Nothing here is called per step, and
nothing here is part of a commit.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from worker_hooks.training.errors import CheckpointError

TIMEOUT = timedelta(minutes=10)


@contextmanager
def process_group() -> Iterator[None]:
    """Join the process group the environment describes, if it describes one and nobody joined before.

    It is left on a clean exit only: after an exception a peer may be gone, and leaving would wait for it. The process
    then ends at once with the exception's code, because torch aborts it otherwise and the code would be lost.
    """
    mine = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if mine:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield
    except BaseException as error:
        if mine:
            end_process(error)
        raise
    if mine:
        dist.destroy_process_group()


def end_process(error: BaseException) -> NoReturn:
    """End this process as Python would, without the interpreter's shutdown."""
    code = 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif error.code is None or isinstance(error.code, int):
        code = error.code or 0
    else:
        print(error.code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Coordinator:
    """The ranks of this attempt. With one rank every call answers at once.

    Raises CheckpointError where there should be several and nothing joins them."""

    def __init__(self) -> None:
        self.joined = dist.is_available() and dist.is_initialized()
        stated = int(os.environ.get("WORLD_SIZE", "1"))
        if stated > 1 and not self.joined:
            raise CheckpointError(
                f"WORLD_SIZE={stated} and no process group: each rank would take itself for the only one. Make Run "
                "after torch.distributed.init_process_group(), or use Run.launch(main), which joins the group"
            )
        self.rank: int = dist.get_rank() if self.joined else 0
        self.world_size: int = dist.get_world_size() if self.joined else 1
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if self.world_size > 1 else None

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value, on every rank."""
        if self._group is None:
            return value
        data = _to_tensor(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([data.numel()])
        dist.broadcast(size, 0, group=self._group)
        if self.rank != 0:
            data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self._group)
        return _from_tensor(data)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on every rank."""
        if self._group is None:
            return [value]
        data = _to_tensor(value)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([data.numel()]), group=self._group)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: data.numel()] = data
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        dist.all_gather(parts, padded, group=self._group)
        return [_from_tensor(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]


def _to_tensor(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value, allow_nan=False).encode()), dtype=torch.uint8)


def _from_tensor(data: torch.Tensor) -> Any:
    return json.loads(bytes(data.tolist()))
