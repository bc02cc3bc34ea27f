"""A training program small enough for tests and rich enough to break: dropout, BatchNorm, clipping, a schedule, an EMA.

argv[1] is JSON, see `DEFAULTS`. Each rank writes `<out>.<rank>.json`: its losses and the digests of what it ends with.
`die` is {"rank", "step"}: that rank (null: each) kills itself there. `swallow` wraps the loop in `except Exception`.
`stay_until`: after its last update the program stays until a file of that name is in the newest checkpoint.
"""

import errno
import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from worker_hooks import Run
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.data.sample_random import PerSampleRandom, tell_epoch

DEFAULTS: dict[str, Any] = {
    "plain": False,
    "total": 18,
    "epochs": 3,
    "samples": 80,
    "batch": 4,
    "every": 4,
    "root": None,
    "out": None,
    "die": None,
    "swallow": False,
    "sampler": "resumable",
    "augment": None,  # "process": with the process's random numbers; "per_sample": with each sample's own
    "workers": 0,
    "wrap": "ddp",
    "accumulate": 1,
    "batch_norm": True,
    "optimizer": "adamw",
    "nan_at": None,
    "wait_at": None,
    "elastic": False,
    "fresh_start": False,
    "exact": None,
    "die_before_commit": None,
    "sleep_s": 0.0,
    "asynchronous": False,
    "full_disk": None,
    "stay_until": None,
}


class Net(nn.Module):
    """Used out of order of definition, so that gradients are not ready in plain reverse order."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.last = nn.Linear(64, 8)
        self.first = nn.Linear(16, 96)
        self.norm = nn.BatchNorm1d(96) if batch_norm else nn.LayerNorm(96)
        self.middle = nn.Linear(96, 64)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(torch.relu(self.middle(x)))


class Augmented(Dataset[Any]):
    """What users' transforms do: numbers from the global generators of Python, numpy and torch."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x * random.uniform(0.9, 1.1) + float(numpy.random.normal(0.0, 0.01)) + 0.01 * torch.rand(16), y


class Average:
    """An EMA that is no module: its state is a dict of tensors."""

    def __init__(self, model: nn.Module) -> None:
        self.values = [parameter.detach().clone() for parameter in model.parameters()]
        self.count = 0

    def update(self, model: nn.Module) -> None:
        self.count += 1
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.count = list(state["values"]), state["count"]


class Job:
    def __init__(self, options: dict[str, Any]) -> None:
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(3)
        self.options = options
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.model = self._wrap(Net(options["batch_norm"]))
        self.loader = self._loader()
        self.optimizer = _optimizer(options["optimizer"], self.model)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=30)
        self.average = Average(self.model) if options["wrap"] != "fsdp" else None
        torch.manual_seed(100 + self.rank)
        numpy.random.seed(100 + self.rank)
        random.seed(100 + self.rank)
        self._seen = 0

    def _wrap(self, net: nn.Module) -> nn.Module:
        kind = self.options["wrap"]
        if not dist.is_initialized() or kind == "none":
            return net
        if kind == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            return fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        # A small cap: several buckets, so that their order shows in the bits.
        return DistributedDataParallel(net, bucket_cap_mb=0.01)

    def _data(self) -> Any:
        generator = torch.Generator().manual_seed(11)
        count = self.options["samples"]
        data = TensorDataset(
            torch.randn(count, 16, generator=generator), torch.randint(0, 8, (count,), generator=generator)
        )
        return Augmented(data) if self.options["augment"] else data

    def _loader(self) -> DataLoader[Any]:
        options = self.options
        data = self._data()
        if options["augment"] == "per_sample":
            data = PerSampleRandom(data, seed=6)
        more = {"drop_last": True, "num_workers": options["workers"]}
        if options["sampler"] == "resumable":
            return DataLoader(data, options["batch"], sampler=ResumableSampler(data, seed=5), **more)
        if options["sampler"] == "distributed" and dist.is_initialized():
            return DataLoader(data, options["batch"], sampler=DistributedSampler(data, seed=5), **more)
        return DataLoader(data, options["batch"], shuffle=True, **more)

    def update(self, batch: Any) -> torch.Tensor | None:
        """None while gradients accumulate."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self._seen += 1
        if self._seen % self.options["accumulate"]:
            return None
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if self.average is not None:
            self.average.update(self.model)
        return loss

    def updated(self, step: int, loss: torch.Tensor) -> None:
        """Called after each update, for programs that look closer."""

    def ending(self) -> dict[str, Any]:
        from worker_hooks.training.files.digests import tensors_digest

        return {
            "parameters": tensors_digest(dict(self.model.named_parameters())),
            "buffers": tensors_digest({key: value for key, value in self.model.named_buffers() if self.rank == 0}),
            "average": tensors_digest({str(i): v for i, v in enumerate(self.average.values)}) if self.average else None,
            "lr": float(self.optimizer.param_groups[0]["lr"]).hex(),
            "next_random": torch.rand(1).item().hex(),
        }


def _optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def plain(options: dict[str, Any], kind: type[Job] = Job) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    job = kind(options)
    losses: list[str] = []
    for epoch in range(options["epochs"]):
        if len(losses) == options["total"]:
            break
        tell_epoch(job.loader, epoch)
        for batch in job.loader:
            loss = job.update(batch)
            if loss is not None:
                losses.append(loss.item().hex())
                job.updated(len(losses), loss)
            if len(losses) == options["total"]:
                break
    write(options, job, {"losses": losses})
    if dist.is_initialized():
        del job  # before its process group: see Run.launch
        gc.collect()
        dist.destroy_process_group()


def tracked(options: dict[str, Any], kind: type[Job] = Job) -> None:
    def main(run: Run) -> None:
        job = kind(options)
        run.track(model=job.model, optimizer=job.optimizer, scheduler=job.scheduler, loader=job.loader, ema=job.average)
        run.restore()
        for _ in run.epochs(options["epochs"]):
            for batch in run.batches(job.loader):
                try:
                    loss = job.update(batch)
                    if loss is not None:
                        run.step(loss=loss)
                        job.updated(run.completed, loss)
                except Exception:
                    if not options["swallow"]:
                        raise
                incidents(options, job, run)
                time.sleep(options["sleep_s"])
        while options["stay_until"] and not (newest(run.folder) / options["stay_until"]).exists():
            time.sleep(0.02)
        write(options, job, {"generation": run.generation, "steps": run.completed})

    Run.launch(
        main,
        root=options["root"],
        checkpoint_every=options["every"],
        total_steps=options["total"],
        elastic=options["elastic"],
        fresh_start=options["fresh_start"],
        exact=options["exact"],
        asynchronous=options["asynchronous"],
    )


def newest(folder: Path) -> Path:
    return max(folder.glob("step-*"))


def fill_disk(rank: int, step: int) -> None:
    """The disk of one rank takes nothing of one save."""
    from worker_hooks.training.files import writing

    def write(descriptor: int, data: memoryview) -> int:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if f"step-{step:08d}" in name and f"rank-{rank:05d}" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)

    writing.write = write


def incidents(options: dict[str, Any], job: Job, run: Run) -> None:
    die, nan_at, wait_at = options["die"], options["nan_at"], options["wait_at"]
    if die and run.completed == die["step"] and die["rank"] in (job.rank, None):
        os.kill(os.getpid(), signal.SIGKILL)
    if nan_at == run.completed:
        next(iter(job.model.parameters())).data.view(-1)[0] = float("nan")
    if wait_at and wait_at["step"] == run.completed:
        Path(f"{wait_at['arrived']}.{job.rank}").touch()
        while not Path(wait_at["go"]).exists():
            time.sleep(0.01)


def write(options: dict[str, Any], job: Job, more: dict[str, Any]) -> None:
    if options["out"]:
        Path(f"{options['out']}.{job.rank}.json").write_text(json.dumps({**job.ending(), **more}))


def die_before_commit() -> None:
    """Rank 0's machine fails when everything is written and the manifest is about to be renamed into place."""
    from worker_hooks.protocol import committing

    committing.replace_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]


if __name__ == "__main__":
    chosen = DEFAULTS | json.loads(sys.argv[1])
    if chosen["die_before_commit"]:
        die_before_commit()
    if chosen["full_disk"]:
        fill_disk(**chosen["full_disk"])
    (plain if chosen["plain"] else tracked)(chosen)
