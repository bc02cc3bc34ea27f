"""A model sharded by `fully_shard` (FSDP 2) under Relume: each rank saves and loads its own shards.

Run it as `relume run --ranks 2 -- python examples/fsdp2.py`, or `torchrun --nproc-per-node 2 examples/fsdp2.py`.
Started again on another number of ranks it keeps the global batch where the numbers divide (`elastic`).
"""

import argparse

import gpt_model
import synthetic
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from worker_hooks import Run
from worker_hooks.training.data import ResumableSampler


def build(args: argparse.Namespace, device: torch.device) -> gpt_model.GPT:
    """Each block is a unit of its own, so that its parameters are gathered only while it works."""
    torch.manual_seed(args.seed)
    net = gpt_model.GPT(width=64, layers=2, context=32).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    torch.manual_seed(1000 * args.seed + dist.get_rank())  # dropout differs by rank
    return net


def train(run: Run, args: argparse.Namespace) -> None:
    device = synthetic.device()
    net = build(args, device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = gpt_model.Windows(gpt_model.corpus(args.samples * 32 + 1), context=32)
    loader = DataLoader(data, args.batch, sampler=ResumableSampler(data, seed=args.seed), drop_last=True)

    run.track(model=net, optimizer=optimizer, loader=loader)
    run.restore()
    for _ in run.epochs(args.epochs):
        for windows in run.batches(loader):
            windows = windows.to(device)
            loss = F.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    synthetic.report(args, {"steps": run.completed, "parameters": synthetic.digest(net)})


def main() -> None:
    args = synthetic.arguments(__doc__ or "").parse_args()
    Run.launch(
        lambda run: train(run, args),
        root=args.root,
        checkpoint_every=args.checkpoint_every,
        elastic="keep_global_batch",
    )


if __name__ == "__main__":
    main()
