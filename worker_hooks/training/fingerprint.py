"""What a run is at a step boundary, in a few digests: written at a save, computed again after a load, compared.

Version 2 (`summary`) holds what the chunks' own digests do not say. It costs the training thread a sample.
"""

from collections.abc import Mapping
from typing import Any

import torch

from worker_hooks.training import ddp, names
from worker_hooks.training.digests import all_finite, local_tensor, tensors_digest, value_digest
from worker_hooks.training.tracked import Parts, Tracked

Fingerprint = dict[str, Any]
_SAMPLED = 64


def take(tracked: Tracked, parts: Parts, *, step: int, world_size: int, algorithm: str) -> Fingerprint:
    """The summary, with what a writer in the background finds by itself: the objects' digests, and `finite`."""
    return {
        **summary(tracked, parts, step=step, world_size=world_size, algorithm=algorithm),
        "objects": object_digests({name: parts.values[name] for name in tracked.others}, parts.own, algorithm),
        "finite": all_finite(tracked.parameters().values()),
    }


def summary(tracked: Tracked, parts: Parts, *, step: int, world_size: int, algorithm: str) -> Fingerprint:
    """This rank's, without what the digests of the chunks and of the objects say."""
    return {
        "version": 2,
        "step": step,
        "learning_rate": learning_rates(tracked),
        "settings": settings_digest({name: parts.values[name] for name in tracked.optimizers}, algorithm),
        "replicas": _replicas_digest(parts, algorithm) if world_size > 1 else None,
    }


def layout(tracked: Tracked, world_size: int) -> dict[str, Any]:
    """What else the bits depend on. Collective among DDP's ranks the first time (see ddp.bucket_order)."""
    return {
        "world_size": world_size,
        "buckets": {path: ddp.bucket_order(replica) for path, replica in ddp.replicas(tracked.models).items()},
    }


def learning_rates(tracked: Tracked) -> list[str]:
    """Of every group of every optimizer, exactly."""
    groups = [group for optimizer in tracked.optimizers.values() for group in optimizer.param_groups]
    return [float(group["lr"]).hex() for group in groups if "lr" in group]


def versions() -> dict[str, str]:
    return {"torch": torch.__version__}


def settings_digest(optimizers: Mapping[str, Any], algorithm: str) -> str:
    """Settings and plain state of the optimizers' JSON values by name. The learning rate has a check of its own."""
    settings = []
    for name in sorted(optimizers):
        groups = [{k: v for k, v in group["settings"].items() if k != "lr"} for group in optimizers[name]["groups"]]
        settings.append([name, groups, optimizers[name]["state"]])
    return value_digest(settings, algorithm)


def object_digests(values: Mapping[str, Any], own: Mapping[str, torch.Tensor], algorithm: str) -> dict[str, str]:
    """By name, over an object's JSON values and the tensors inside it."""
    return {name: _object_digest(name, values[name], own, algorithm) for name in sorted(values)}


def _object_digest(name: str, value: Any, own: Mapping[str, torch.Tensor], algorithm: str) -> str:
    tensors = {key: tensor for key, tensor in own.items() if key == name or key.startswith(f"{name}.")}
    return value_digest([value, tensors_digest(tensors, algorithm)], algorithm)


def _replicas_digest(parts: Parts, algorithm: str) -> str:
    """Over a strided sample of every tensor that should be equal on all ranks."""
    equal = {k: v for k, v in parts.shared.items() if not names.is_sharded(v) and k not in parts.from_rank_zero}
    return tensors_digest({key: _sample(tensor) for key, tensor in equal.items()}, algorithm)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return local_tensor(flat[:: max(1, flat.numel() // _SAMPLED)])
