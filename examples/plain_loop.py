"""The same training as gpt.py without Relume: its losses and parameters must be the same to the bit."""

import gc
import hashlib
import json
import os

import gpt_model
import torch.distributed as dist


def main() -> None:
    args = gpt_model.arguments(__doc__ or "").parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    job = gpt_model.build(args)
    total = gpt_model.total_steps(args, job.loader)
    losses: dict[int, str] = {}
    for epoch in range(args.epochs):
        job.sampler.set_epoch(epoch)
        for windows in job.loader:
            if len(losses) == total:
                break
            losses[len(losses) + 1] = job.update(windows).item().hex()
    if os.environ.get("RANK", "0") == "0":
        text = gpt_model.losses_text(losses)
        report = {
            "steps": len(losses),
            "parameters_digest": gpt_model.parameters_digest(job.model),
            "corpus_digest": job.corpus_digest,
            "losses_digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        }
        if args.out:
            args.out.write_text(text)
        if args.report:
            args.report.write_text(json.dumps(report, indent=1) + "\n")
    if dist.is_initialized():
        del job  # a DDP model that outlives its process group can hang in its destructor
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
