"""A training program that tells which samples each rank trained in which step, for runs that change their ranks.

argv[1] is JSON: root, trace (path prefix), samples, batch, total, every, die ({"rank", "step"}). Each rank appends to
`<trace>.<rank>.jsonl`: first where it begins and the digest of its parameters, then the ids of each step.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from worker_hooks import Run
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.files.digests import tensors_digest


def train(run: Run, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(options["samples"]))
    loader = DataLoader(data, options["batch"], sampler=ResumableSampler(data, seed=5))
    run.track(model=model, optimizer=optimizer, loader=loader)
    with Path(f"{options['trace']}.{rank}.jsonl").open("a") as trace:

        def tell(**line: Any) -> None:
            trace.write(json.dumps({"step": run.completed, **line}) + "\n")
            trace.flush()

        run.restore()
        tell(parameters=tensors_digest(dict(model.named_parameters())))
        for _ in run.epochs(1):
            for (ids,) in run.batches(loader):
                optimizer.zero_grad()
                loss = model(ids[:, None] / options["samples"]).square().mean()
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
                tell(ids=ids.tolist())
                if options["die"] and options["die"] == {"rank": rank, "step": run.completed}:
                    wait_for_a_checkpoint(run)
                    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_a_checkpoint(run: Run) -> None:
    """Every rank's part of one of this attempt's saves is durable: the next attempt commits it if nobody did."""
    ranks, deadline = torch.distributed.get_world_size(), time.monotonic() + 30
    while time.monotonic() < deadline:
        folders = run.folder.glob(f"step-*.g{run.generation}")
        if any(len(list(folder.glob("rank-*.json"))) == ranks for folder in folders):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    Run.launch(
        lambda run: train(run, chosen),
        root=chosen["root"],
        checkpoint_every=chosen["every"],
        total_steps=chosen["total"],
        elastic="keep_lr",
    )
