"""Values that one rank stores for all: are they really the same on every rank? Asked once, at the first save."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from worker_hooks.training.files.digests import tensors_digest, value_digest
from worker_hooks.training.lint.findings import Finding, some
from worker_hooks.training.state import names, parallel
from worker_hooks.training.state.tracked import Parts, Tracked

KEYS, VALUES = 256, 64
_ALGORITHM = "sha256"


def samples(tracked: Tracked, world_size: int) -> dict[str, str]:
    """Digests of at most `KEYS` shared values by key, of at most `VALUES` numbers each. With one rank there are none.

    A tensor that is sharded over one dimension of a mesh and replicated over another is compared shard by shard.
    """
    if world_size == 1:
        return {}
    parts = tracked.collect(world_size)
    tensors = dict(_tensors(parts))
    keys = sorted(tensors)
    chosen = keys[:: -(-len(keys) // KEYS) or 1]
    found = {key: tensors_digest({"": _sample(tensors[key])}, _ALGORITHM) for key in chosen}
    shared = [name for name in tracked.optimizers if any(key.startswith(f"{name}/") for key in parts.shared)]
    return found | {key: value_digest(value, _ALGORITHM) for key, value in _settings(parts, shared)}


def compare(by_rank: list[Mapping[str, str]]) -> list[Finding]:
    """What differs. A key that a rank does not have is no difference."""
    holders: dict[str, dict[str, list[int]]] = {}
    for rank, values in enumerate(by_rank):
        for key, digest in values.items():
            holders.setdefault(key, {}).setdefault(digest, []).append(rank)
    differing = {key: list(ranks.values()) for key, ranks in sorted(holders.items()) if len(ranks) > 1}
    if not differing:
        return []
    first = next(iter(differing.values()))
    groups = " and ".join(f"ranks {ranks}" for ranks in first[:2])
    text = f"one rank's value would be stored for all, but {groups} differ; make them equal, or keep them out of DDP"
    return [Finding("replicas", some(differing), text)]


def _tensors(parts: Parts) -> Iterator[tuple[str, torch.Tensor]]:
    for key, tensor in parts.shared.items():
        if names.is_sharded(tensor):
            shard = parallel.shard_of(tensor)
            if shard is not None:
                yield f"{key}{shard}", tensor.to_local()
        elif key not in parts.from_rank_zero:
            yield key, tensor


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)[:VALUES]
    return flat[:: max(1, flat.numel() // VALUES)].clone()


def _settings(parts: Parts, optimizers: list[str]) -> Iterator[tuple[str, Any]]:
    for name in optimizers:
        for index, group in enumerate(parts.values[name]["groups"]):
            for key, value in group["settings"].items():
                yield f"{name}/group.{index}.{key}", value
