"""Trains a small GPT under Relume. Alone, under torchrun, or under `relume run -- python examples/gpt.py`."""

import argparse
import hashlib
import json
import os
from pathlib import Path

import gpt_model

from worker_hooks import Run
from worker_hooks.protocol.losses import read_losses


def main() -> None:
    parser = gpt_model.arguments(__doc__ or "")
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--root", type=Path, help="checkpoint root (default: the environment)")
    args = parser.parse_args()
    end: dict[str, object] = {}

    def train(run: Run) -> None:
        job = gpt_model.build(args)
        run.track(model=job.model, optimizer=job.optimizer, scheduler=job.scheduler, loader=job.loader)
        run.restore()
        for epoch in run.epochs(args.epochs):
            for windows in run.batches(job.loader):
                loss = job.update(windows)
                run.step(loss=loss)
            print(f"epoch {epoch} ended at step {run.completed}", flush=True)
        end.update(
            steps=run.completed,
            generation=run.generation,
            parameters_digest=gpt_model.parameters_digest(job.model),
            corpus_digest=job.corpus_digest,
            checkpoints=str(run.folder),
        )

    Run.launch(train, root=args.root, checkpoint_every=args.checkpoint_every, total_steps=_total_steps(args))
    if os.environ.get("RANK", "0") == "0":
        _report(args, end)


def _total_steps(args: argparse.Namespace) -> int:
    per_epoch = args.samples // int(os.environ.get("WORLD_SIZE", "1")) // args.batch
    return min(args.epochs * per_epoch, args.steps or args.epochs * per_epoch)


def _report(args: argparse.Namespace, end: dict[str, object]) -> None:
    text = gpt_model.losses_text(read_losses(Path(str(end["checkpoints"])), rank=0))
    end["losses_digest"] = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    if args.out:
        args.out.write_text(text)
        end["losses"] = str(args.out)
    if args.report:
        args.report.write_text(json.dumps(end, indent=1) + "\n")


if __name__ == "__main__":
    main()
