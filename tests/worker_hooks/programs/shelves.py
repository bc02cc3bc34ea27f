"""A run with a frozen part, made once, and resumed from many damaged copies of its folder by the same processes.

argv[1] is JSON: {"root", "steps"}: go on to that many updates, saving each, until the last is read back; or {"cases":
[{"root", "run_dir", "out"}]}: in each root one attempt of one update, and what it found in `<out>.<rank>.json`.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_hooks import Run
from worker_hooks.protocol.manifest import VERIFIED
from worker_hooks.training.files.digests import tensors_digest


class Net(nn.Module):
    """1 MiB that no update changes: from the third save on it is linked, not written."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(512, 512).requires_grad_(False)
        self.norm = nn.BatchNorm1d(512)
        self.last = nn.Linear(512, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.frozen(x)))


def objects() -> dict[str, Any]:
    torch.manual_seed(3)
    net: nn.Module = Net()
    if dist.is_initialized():
        net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    return {"model": net, "optimizer": optimizer}


def update(tracked: dict[str, Any]) -> torch.Tensor:
    loss = tracked["model"](torch.randn(4, 512)).square().mean()
    loss.backward()
    tracked["optimizer"].step()
    tracked["optimizer"].zero_grad()
    return loss


def state(tracked: dict[str, Any]) -> str:
    moments = tracked["optimizer"].state_dict()["state"]
    tensors = {f"moment {index}": entry["momentum_buffer"] for index, entry in moments.items()}
    return tensors_digest({**dict(tracked["model"].named_parameters()), **tensors})


def make(root: str, steps: int) -> None:
    """The state after each update is in `<root>.<rank>.<step>`."""
    tracked = objects()
    with Run(root=root, checkpoint_every=1, keep=9, total_steps=steps, **tracked) as run:
        while run.completed < steps:
            run.step(loss=update(tracked))
            Path(f"{root}.{rank()}.{run.completed}").write_text(state(tracked))
            newest = run.folder / f"step-{run.completed:08d}.g{run.generation}"
            deadline = time.monotonic() + 30
            while run.generation and not (newest / VERIFIED).exists() and time.monotonic() < deadline:
                time.sleep(0.01)


def resume(case: dict[str, str]) -> None:
    os.environ["RELUME_RUN_DIR"] = case["run_dir"]
    found: dict[str, Any] = {}
    with suppress(Exception):
        try:
            tracked = objects()
            with Run(root=case["root"], checkpoint_every=1, keep=9, **tracked) as run:
                found |= {"step": run.completed, "state": state(tracked), "generation": run.generation}
                run.step(loss=update(tracked))
            found["saved"] = run.completed
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
            raise
    Path(f"{case['out']}.{rank()}.json").write_text(json.dumps(found))


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def ranks(store: dist.Store | None, name: str) -> Iterator[None]:
    """A process group with keys of its own: attempts of different copies have the same number."""
    if store is None:
        yield
        return
    mine, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=mine, world_size=size)
    yield
    gc.collect()  # what holds the group goes before it
    dist.destroy_process_group()


def shared_store() -> dist.Store | None:
    size, first = int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    if size == 1:
        return None
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=first)


if __name__ == "__main__":
    asked, store = json.loads(sys.argv[1]), shared_store()
    for number, each in enumerate(asked.get("cases", ())):
        with ranks(store, f"case-{number}"):
            resume(each)
    if "steps" in asked:
        with ranks(store, "make"):
            make(**asked)
