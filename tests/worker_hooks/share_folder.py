"""Shares that were written into a folder without rank files, for tests of what is in them."""

import json
from pathlib import Path

import torch

from worker_hooks.protocol.manifest import FileEntry, rank_folder_name
from worker_hooks.training.files.digests import file_digest
from worker_hooks.training.resuming.share_index import chunks_of
from worker_hooks.training.resuming.share_reader import SharesReader
from worker_hooks.training.resuming.soundness import Share


def load_shares(folder: Path, ranks: int, targets: dict[str, torch.Tensor]) -> None:
    """Fill `targets` from the shares of all ranks, as rank 0 of as many would."""
    SharesReader([share(folder, rank) for rank in range(ranks)], [0]).load(targets)


def share(folder: Path, rank: int) -> Share:
    place = folder / rank_folder_name(rank)
    chunks = chunks_of(json.loads((place / "index.json").read_bytes()), rank)
    entries = [
        FileEntry(f"{place.name}/{path.name}", path.stat().st_size, file_digest(path, "crc32"))
        for path in sorted(place.iterdir())
    ]
    return Share(rank, folder, tuple(entries), tuple(chunks))
