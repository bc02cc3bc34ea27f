"""Trains one kind of model under Run: sharded, tensor-parallel, replicated beside sharded.

argv[1] is JSON, see `DEFAULTS`. Each rank writes `<out>.<rank>.json`: the keys that torch gives its model, its losses
and digests of what it ends with. `die` is a step: every rank kills itself there, once a checkpoint is committed.
`diverge`: the step from which on rank 1 changes a weight.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from worker_hooks import Run
from worker_hooks.training.files.digests import tensors_digest

DEFAULTS: dict[str, Any] = {
    "kind": "ddp",
    "steps": 6,
    "every": 2,
    "die": None,
    "diverge": None,
    "exact": None,
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.outer(torch.relu(self.inner(x))))


def ddp() -> nn.Module:
    return DistributedDataParallel(Net())


def fsdp_mixed() -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fully_shard(Net(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=policy)


def hybrid() -> nn.Module:
    """Sharded inside pairs, replicated across them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    return fully_shard(Net(), mesh=mesh)


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return parallelize_module(Net(), mesh, PLAN)


def two_dimensional() -> nn.Module:
    """FSDP2 over tensor parallel."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    return fully_shard(parallelize_module(Net(), mesh["tp"], PLAN), mesh=mesh["dp"])


def wide() -> nn.Module:
    """As `two_dimensional`, with all ranks in the first dimension."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp"))
    return fully_shard(parallelize_module(Net(), mesh["tp"], PLAN), mesh=mesh["dp"])


def turned() -> nn.Module:
    """As `hybrid`, with the ranks in another order."""
    order = torch.arange(dist.get_world_size()).view(2, -1).t().contiguous()
    return fully_shard(Net(), mesh=DeviceMesh("cpu", order, mesh_dim_names=("replicate", "shard")))


def other_dimension() -> nn.Module:
    """As `fsdp_mixed`, cut along the last dimension."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fully_shard(Net(), mesh=mesh, mp_policy=policy, shard_placement_fn=lambda p: Shard(p.dim() - 1))


def replicated_beside_sharded() -> nn.Module:
    return nn.Sequential(DistributedDataParallel(Net()), fsdp_mixed())


def compiled() -> nn.Module:
    return torch.compile(DistributedDataParallel(Net()), backend="eager")  # type: ignore[return-value]


PLAN = {"inner": ColwiseParallel(), "outer": RowwiseParallel()}
KINDS = {
    make.__name__: make
    for make in (
        ddp,
        fsdp_mixed,
        hybrid,
        tensor_parallel,
        two_dimensional,
        wide,
        turned,
        other_dimension,
        replicated_beside_sharded,
        compiled,
    )
}


def main(run: Run) -> None:
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(3)
    model = KINDS[OPTIONS["kind"]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    run.restore()
    losses = {}
    while run.completed < OPTIONS["steps"]:
        # The same batch on every rank: tensor parallel needs it, the others do not mind.
        torch.manual_seed(run.completed)
        loss = model(torch.randn(4, 8)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if OPTIONS["diverge"] is not None and run.completed + 1 >= OPTIONS["diverge"] and dist.get_rank() == 1:
            next(iter(model.parameters())).data.add_(1.0)
        run.step(loss=loss.detach())
        losses[run.completed] = loss.item().hex()
        if run.completed == OPTIONS["die"]:
            while not any(run.folder.glob("step-*/manifest.json")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    end = {
        "keys": sorted(get_model_state_dict(model)),
        "losses": losses,
        "model": tensors_digest(dict(model.named_parameters())),
        "optimizer": tensors_digest(
            {f"{i}.{k}": v for i, p in enumerate(model.parameters()) for k, v in optimizer.state[p].items()}
        ),
    }
    Path(f"{OPTIONS['out']}.{dist.get_rank()}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    OPTIONS = DEFAULTS | json.loads(sys.argv[1])
    Run.launch(main, root=OPTIONS["root"], checkpoint_every=OPTIONS["every"], exact=OPTIONS["exact"])
