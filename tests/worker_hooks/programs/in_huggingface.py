"""A training by the Trainer of transformers, with and without Relume's callback: dropout, shuffling, a schedule,
accumulation, evaluation, early stopping's state, logs over several updates.

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
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from worker_hooks.integrations.huggingface import RelumeCallback
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.files.digests import tensors_digest

DEFAULTS: dict[str, Any] = {
    "plain": False,
    "root": None,
    "out": None,
    "epochs": 3,
    "samples": 42,
    "batch": 4,
    "every": 1,
    "accumulate": 2,
    "sampler": "framework",
    "max_steps": -1,
    "die": None,
    "stop_at": None,
    "enough_at": None,
    "save": "no",
}
warnings.filterwarnings("ignore")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Data(Dataset[Any]):
    draws_random = False

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 16, generator=generator)
        self.y = torch.randint(0, 8, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": self.y[index], "ids": index}


class Watched(Trainer):
    """What this attempt trained, by update."""

    options: dict[str, Any]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        watch.ids.append(inputs["ids"].tolist())
        loss = super().training_step(model, inputs, num_items_in_batch)
        watch.losses.append(loss.item().hex())
        return loss

    def get_train_dataloader(self) -> Any:
        if self.options["sampler"] == "framework":
            return super().get_train_dataloader()
        sampler = ResumableSampler(self.train_dataset, seed=5)
        return DataLoader(self.train_dataset, self.args.per_device_train_batch_size, sampler=sampler, drop_last=True)


class Watch(TrainerCallback):
    def __init__(self, options: dict[str, Any], rank: int) -> None:
        self.options = options
        self.rank = rank
        self.relume: Any = None
        self.seen: dict[int, Any] = {}
        self.ids: list[list[int]] = []
        self.losses: list[str] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        self.seen[step] = {"ids": self.ids, "losses": self.losses, "epoch": state.epoch}
        self.ids, self.losses = [], []
        die = self.options["die"]
        if die and step == die["step"] and die["rank"] in (self.rank, None):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.options["stop_at"]:
            ask_to_stop(self.relume)
        if step == self.options["enough_at"]:
            control.should_training_stop = True


def ask_to_stop(relume: RelumeCallback) -> None:
    """As the agent would; goes on when it was heard."""
    Path(os.environ["RELUME_RUN_DIR"], "control.json").write_text('{"stop": "asked to", "superseded": false}')
    while not relume.run._attempt._telemetry.control.get("stop"):
        time.sleep(0.01)


def main(options: dict[str, Any]) -> None:
    rank = int(os.environ["RANK"])
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(3)
    stopping = EarlyStoppingCallback(early_stopping_patience=100)
    args = TrainingArguments(
        output_dir=f"{options['root']}/hf",
        use_cpu=True,
        seed=3,
        num_train_epochs=options["epochs"],
        max_steps=options["max_steps"],
        per_device_train_batch_size=options["batch"],
        gradient_accumulation_steps=options["accumulate"],
        learning_rate=0.01,
        lr_scheduler_type="cosine",
        logging_steps=4,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy=options["save"],
        save_steps=5,
        metric_for_best_model="loss",
        load_best_model_at_end=options["save"] != "no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Watched(Model(), args, train_dataset=Data(options["samples"], 11), eval_dataset=Data(16, 12))
    trainer.options = options
    trainer.add_callback(stopping)
    trainer.add_callback(watch)
    if not options["plain"]:
        saving = {"root": options["root"], "checkpoint_every": options["every"], "asynchronous": False}
        watch.relume = RelumeCallback(**saving).attach(trainer)
    trainer.train()
    times = ("runtime", "per_second", "total_flos", "train_loss")
    end = {
        "seen": watch.seen,
        "parameters": tensors_digest(dict(trainer.model.named_parameters())),
        "buffers": tensors_digest(dict(trainer.model.named_buffers())) if rank == 0 else None,
        "moments": tensors_digest(
            {f"{i}.{k}": v for i, s in trainer.optimizer.state_dict()["state"].items() for k, v in s.items()}
        ),
        "lr": float(trainer.optimizer.param_groups[0]["lr"]).hex(),
        "random": torch.rand(1).item().hex(),
        "state": {key: getattr(trainer.state, key) for key in ("global_step", "epoch", "best_metric", "max_steps")},
        "stopping": str(stopping.state()),
        "logs": [
            {key: value for key, value in entry.items() if not any(part in key for part in times)}
            for entry in trainer.state.log_history
        ],
    }
    Path(f"{options['out']}.{rank}.json").write_text(json.dumps(end))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    chosen = DEFAULTS | json.loads(sys.argv[1])
    watch = Watch(chosen, int(os.environ["RANK"]))
    main(chosen)
