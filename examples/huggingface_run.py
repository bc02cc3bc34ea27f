"""A small Llama, trained from scratch by the Trainer of transformers under Relume: one line more than without.

Run it as `relume run --ranks 2 -- python examples/huggingface_run.py`, or under torchrun. No download: the text is the
one of gpt.py, in bytes.
"""

from typing import Any

import gpt_model
import synthetic
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from worker_hooks.integrations.huggingface import RelumeCallback

CONTEXT = 32


class Texts(Dataset[Any]):
    draws_random = False

    def __init__(self, count: int) -> None:
        self.windows = gpt_model.Windows(gpt_model.corpus(count * CONTEXT + 1), CONTEXT)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.windows[index][:CONTEXT]
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    args = synthetic.arguments(__doc__ or "").parse_args()
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=gpt_model.VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        attention_dropout=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(
            output_dir="huggingface-output",
            seed=args.seed,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Texts(args.samples),
    )
    RelumeCallback(root=args.root, checkpoint_every=args.checkpoint_every).attach(trainer)
    trainer.train()
    synthetic.report(args, {"steps": trainer.state.global_step, "parameters": synthetic.digest(trainer.model)})


if __name__ == "__main__":
    main()
