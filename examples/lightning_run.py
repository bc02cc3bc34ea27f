"""A LightningModule under Relume: one callback, nothing else in the training changes.

Run it as `relume run --ranks 2 -- python examples/lightning_run.py`, or under torchrun.
"""

import os
from typing import Any

import synthetic
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from worker_hooks.integrations.lightning import RelumeCallback


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = synthetic.classifier()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        points, classes = batch
        return nn.functional.cross_entropy(self.net(points), classes)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        points, classes = batch
        right = (self.net(points).argmax(1) == classes).float().mean()
        self.log("accuracy", right, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    args = synthetic.arguments(__doc__ or "").parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(args.seed)
    model = Classifier()
    trainer = Trainer(
        callbacks=[RelumeCallback(root=args.root, checkpoint_every=args.checkpoint_every)],
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", ranks)),
        num_nodes=ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks)),
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=args.epochs,
        accumulate_grad_batches=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    train = DataLoader(synthetic.Points(args.samples, seed=args.seed), args.batch, shuffle=True)
    held_out = DataLoader(synthetic.Points(256, seed=args.seed + 1), 64)
    trainer.fit(model, train, held_out)
    synthetic.report(args, {"steps": trainer.global_step, "parameters": synthetic.digest(model)})


if __name__ == "__main__":
    main()
