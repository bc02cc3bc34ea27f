"""A small GPT with dropout and a text corpus that every machine has: shared by gpt.py (with Run) and plain_loop.py."""

import argparse
import hashlib
import math
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from worker_hooks.training.data import ResumableSampler

VOCABULARY = 256  # bytes


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=None, help="stop after so many updates, whatever the epoch")
    parser.add_argument("--samples", type=int, default=1280, help="text windows in an epoch, over all ranks")
    parser.add_argument("--batch", type=int, default=8, help="windows per rank and update")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--report", type=Path, help="rank 0 writes a JSON report here at the end")
    parser.add_argument("--out", type=Path, help="rank 0 writes its loss of every step here at the end")
    return parser


def corpus(size: int) -> bytes:
    """`size` bytes of prose: licence texts and the doc strings of Python's standard library, in the order of names."""
    library = Path(sysconfig.get_paths()["stdlib"])
    licences = sorted(path for path in Path("/usr/share/common-licenses").glob("*") if path.is_file())
    text = b"".join(path.read_bytes() for path in licences[:4])
    for path in sorted(library.glob("*.py")):
        if len(text) >= size:
            break
        text += b"\n".join(re.findall(rb'"""(.*?)"""', path.read_bytes(), re.DOTALL))
    if len(text) < size:
        raise SystemExit(f"this machine has only {len(text)} bytes of text; ask for fewer --samples")
    return text[:size]


class Windows(Dataset[torch.Tensor]):
    """Stretches of `context + 1` bytes, one after the other."""

    def __init__(self, text: bytes, context: int) -> None:
        self.digest = "sha256:" + hashlib.sha256(text).hexdigest()
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._context
        return self._text[start : start + self._context + 1].long()


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, context: int, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.token(ids) + self.place(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass
class Training:
    """Everything a training loop needs, built the same way in every attempt."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    loader: DataLoader[torch.Tensor]
    sampler: ResumableSampler
    corpus_digest: str

    def update(self, windows: torch.Tensor) -> torch.Tensor:
        """One optimizer update; returns this rank's own loss."""
        logits = self.model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss


def build(args: argparse.Namespace) -> Training:
    """Deterministic from the seed; dropout differs by rank."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    data = Windows(corpus(args.samples * args.context + 1), args.context)
    distributed = dist.is_initialized()
    net: nn.Module = GPT(args.width, args.layers, args.context)
    if distributed:
        net = DistributedDataParallel(net, bucket_cap_mb=1)
    torch.manual_seed(args.seed * 1000 + (dist.get_rank() if distributed else 0))
    sampler = ResumableSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.1)
    total = total_steps(args, loader)
    scheduler = LambdaLR(optimizer, lambda step: _cosine(step, warm_up=10, total=total))
    return Training(net, optimizer, scheduler, loader, sampler, data.digest)


def total_steps(args: argparse.Namespace, loader: DataLoader[torch.Tensor]) -> int:
    whole = args.epochs * len(loader)
    return min(whole, args.steps) if args.steps else whole


def _cosine(step: int, warm_up: int, total: int) -> float:
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, total - warm_up))))


def parameters_digest(model: nn.Module) -> str:
    """SHA-256 over every parameter's bits, in the order of the names, without DDP's prefix."""
    hasher = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        hasher.update(name.removeprefix("module.").encode())
        hasher.update(bytes(parameter.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return "sha256:" + hasher.hexdigest()


def losses_text(losses: dict[int, str]) -> str:
    """One line per step: step and hex loss. Equal texts are equal curves, to the bit."""
    return "".join(f"{step} {loss}\n" for step, loss in sorted(losses.items()))
