"""Plain DistributedDataParallel under Relume, with gradient accumulation and an evaluation after each epoch.

Run it as `relume run --ranks 2 -- python examples/ddp.py`, or `torchrun --nproc-per-node 2 examples/ddp.py`; started
again after a kill, with the same RELUME_RUN_ID and checkpoint root, it goes on where it was.
"""

import argparse

import synthetic
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from worker_hooks import Run
from worker_hooks.training.data import ResumableSampler


def train(run: Run, args: argparse.Namespace) -> None:
    device = synthetic.device()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(synthetic.classifier().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    data = synthetic.Points(args.samples, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=ResumableSampler(data, seed=args.seed), drop_last=True)
    held_out = DataLoader(synthetic.Points(256, seed=args.seed + 1), 64)
    torch.manual_seed(1000 * args.seed + torch.distributed.get_rank())  # dropout differs by rank

    run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    run.restore()
    for epoch in run.epochs(args.epochs):
        model.train()
        losses = []
        for points, classes in run.batches(loader):
            loss = nn.functional.cross_entropy(model(points.to(device)), classes.to(device)) / args.accumulate
            loss.backward()
            losses.append(loss.detach())
            if len(losses) < args.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            run.step(loss=torch.stack(losses).sum())  # once per update, however many batches made it
            losses = []
        with run.phase("evaluation"):
            found = synthetic.accuracy(model.module, held_out, device)
        if torch.distributed.get_rank() == 0:
            print(f"epoch {epoch}: {found:.1%} right after {run.completed} updates", flush=True)
    synthetic.report(args, {"steps": run.completed, "parameters": synthetic.digest(model)})


def main() -> None:
    parser = synthetic.arguments(__doc__ or "")
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    Run.launch(
        lambda run: train(run, args),
        root=args.root,
        checkpoint_every=args.checkpoint_every,
        accumulation=args.accumulate,
    )


if __name__ == "__main__":
    main()
