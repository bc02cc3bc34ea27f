"""A training by Lightning's Trainer, with and without Relume's callback: dropout, shuffling, a schedule, accumulation,
validation, early stopping's state.

argv[1] is JSON, see `DEFAULTS`. Each rank writes `<out>.<rank>.json`: the losses, ids and counters that it saw, and the
digests of what it ends with. `die` is {"rank", "step"}: that rank (null: each) kills itself after that update; at
`stop_at` the agent asks to stop, at `enough_at` a callback, as early stopping does.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from worker_hooks.integrations.lightning import RelumeCallback
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.files.digests import tensors_digest

DEFAULTS: dict[str, Any] = {
    "plain": False,
    "root": None,
    "out": None,
    "epochs": 3,
    "samples": 44,
    "batch": 4,
    "every": 1,
    "accumulate": 2,
    "sampler": "framework",
    "validate_every": 1.0,
    "max_steps": -1,
    "both": False,  # epochs and steps have a limit
    "die": None,
    "stop_at": None,
    "enough_at": None,
    "checkpointing": False,
}
warnings.filterwarnings("ignore")


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 8))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["batches"] = self.batches

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.batches = checkpoint["batches"]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, _ = batch
        self.batches += 1
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, _ = batch
        self.log("val", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


class Watch(Callback):
    """What this attempt trained, by update; dies or asks to stop where it is told."""

    def __init__(self, options: dict[str, Any], rank: int) -> None:
        self.options = options
        self.rank = rank
        self.relume: Any = None
        self.seen: dict[int, Any] = {}
        self.hooks: list[str] = []
        self._ids: list[list[int]] = []
        self._losses: list[str] = []
        self._steps: int | None = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.hooks.append(f"epoch {trainer.current_epoch}")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            value = trainer.callback_metrics["val"].item().hex()
            self.hooks.append(f"validated after {trainer.global_step}: {value}")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._steps = trainer.global_step
        self._ids.append(batch[2].tolist())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._losses.append(outputs["loss"].item().hex())
        if trainer.global_step == self._steps:
            return
        step = trainer.global_step
        counters = [trainer.current_epoch, batch_idx, trainer.fit_loop.epoch_loop._batches_that_stepped]
        self.seen[step] = {"ids": self._ids, "losses": self._losses, "counters": counters}
        self._ids, self._losses = [], []
        die = self.options["die"]
        if die and step == die["step"] and die["rank"] in (self.rank, None):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.options["stop_at"]:
            ask_to_stop(self.relume)
        if step == self.options["enough_at"]:
            trainer.should_stop = True


def loader(options: dict[str, Any], *, train: bool) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(11 if train else 12)
    count = options["samples"]
    data = TensorDataset(
        torch.randn(count, 16, generator=generator),
        torch.randint(0, 8, (count,), generator=generator),
        torch.arange(count),
    )
    if train and options["sampler"] == "resumable":
        return DataLoader(data, options["batch"], sampler=ResumableSampler(data, seed=5), drop_last=True)
    return DataLoader(data, options["batch"], shuffle=train)


def ask_to_stop(relume: RelumeCallback) -> None:
    """As the agent would; goes on when it was heard."""
    Path(os.environ["RELUME_RUN_DIR"], "control.json").write_text('{"stop": "asked to", "superseded": false}')
    while not relume.run._attempt._telemetry.control.get("stop"):
        time.sleep(0.01)


def main(options: dict[str, Any]) -> None:
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(3)
    module, watch = Module(), Watch(options, rank)
    stopping = EarlyStopping("val", patience=100)
    saving = {"root": options["root"], "checkpoint_every": options["every"], "asynchronous": False}
    relume = [] if options["plain"] else [RelumeCallback(**saving)]
    watch.relume = next(iter(relume), None)
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=options["epochs"] if options["max_steps"] == -1 or options["both"] else -1,
        max_steps=options["max_steps"],
        accumulate_grad_batches=options["accumulate"],
        val_check_interval=options["validate_every"],
        use_distributed_sampler=options["sampler"] == "framework",
        logger=False,
        enable_checkpointing=options["checkpointing"],
        default_root_dir=options["root"],
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*relume, watch, stopping],
    )
    torch.manual_seed(100 + rank)
    trainer.fit(module, loader(options, train=True), loader(options, train=False))
    end = {
        "seen": watch.seen,
        "hooks": watch.hooks,
        "batches": module.batches,
        "parameters": tensors_digest(dict(module.named_parameters())),
        "buffers": tensors_digest(dict(module.named_buffers())) if rank == 0 else None,
        "moments": tensors_digest(
            {f"{i}.{k}": v for i, s in trainer.optimizers[0].state_dict()["state"].items() for k, v in s.items()}
        ),
        "lr": float(trainer.optimizers[0].param_groups[0]["lr"]).hex(),
        "random": torch.rand(1).item().hex(),
        "stopping": {key: str(value) for key, value in stopping.state_dict().items()},
        "progress": [trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop.total_batch_idx],
    }
    Path(f"{options['out']}.{rank}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main(DEFAULTS | json.loads(sys.argv[1]))
