"""Made-up data and a small classifier, so that ddp.py, lightning_run.py and the others need no download."""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, CLASSES = 16, 4


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=320, help="in an epoch, over all ranks")
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and batch")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--root", type=Path, help="checkpoint root (default: the environment)")
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--report", type=Path, help="rank 0 writes a JSON report here at the end")
    return parser


class Points(Dataset[Any]):
    """Points around the centres of a few classes."""

    draws_random = False

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
        self.classes = torch.randint(0, CLASSES, (count,), generator=generator)
        self.points = centres[self.classes] + 1.5 * torch.randn(count, WIDTH, generator=generator)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.classes[index]


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))


def device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Any], on: torch.device) -> float:
    model.eval()
    right = [(model(points.to(on)).argmax(1) == classes.to(on)).float().mean() for points, classes in loader]
    return torch.stack(right).mean().item()


def digest(model: nn.Module) -> str:
    """SHA-256 over the bits of every parameter; of a sharded one over all its shards, so every rank must ask."""
    hasher = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        whole: Any = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        hasher.update(whole.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return f"sha256:{hasher.hexdigest()}"


def report(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if args.report and os.environ.get("RANK", "0") == "0":
        args.report.write_text(json.dumps(found) + "\n")
