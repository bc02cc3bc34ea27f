"""Shares that were written into a folder without rank files, and checkpoints made into what other writers leave."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import generations
from worker_hooks.protocol.durable import encode_json
from worker_hooks.protocol.manifest import FileEntry, encode_manifest, rank_folder_name
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


def forge(folder: Path, rank: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a rank file and make the manifest agree: what a writer with a defect would have left."""
    path = folder / f"rank-{rank:05d}.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_bytes(encode_json(data))
    manifest = encode_manifest(generations.read_manifest(folder))
    manifest["ranks"][rank]["digest"] = file_digest(path, "sha256")
    (folder / "manifest.json").write_bytes(encode_json(manifest))


def rewrite(
    folder: Path, rank: int, index: Callable[[dict[str, Any]], object], file: Callable[[dict[str, Any]], object]
) -> None:
    """Change a rank's index and its rank file, and make every digest agree: what another writer would have left."""
    path = folder / rank_folder_name(rank) / "index.json"
    data = json.loads(path.read_text())
    index(data)
    path.write_bytes(encode_json(data))

    def whole(rank_file: dict[str, Any]) -> None:
        for entry in rank_file["files"]:
            at = folder / entry["name"]
            entry |= {"bytes": at.stat().st_size, "digest": file_digest(at, "sha256")}
        file(rank_file)

    forge(folder, rank, whole)


def as_version_1(folder: Path, ranks: int = 1) -> None:
    """Indexes without digests and files, fingerprints with what version 2 leaves to the chunks."""

    def index(data: dict[str, Any]) -> None:
        data["version"] = 1
        assert {chunk.pop("file") for chunk in data["chunks"]} == {"tensors.bin"}
        for chunk in data["chunks"]:
            del chunk["digest"]

    def file(data: dict[str, Any]) -> None:
        for key in ("version", "settings", "replicas"):
            data["fingerprint"].pop(key, None)
        data["fingerprint"] |= {"parameters": "crc32:00000000", "buffers": "crc32:00000000"}

    for rank in range(ranks):
        rewrite(folder, rank, index, file)
