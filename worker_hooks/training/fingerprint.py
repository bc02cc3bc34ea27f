"""What a run is at a step boundary, in a few digests: written at a save, computed again after a load, compared."""

from typing import Any

import torch

from worker_hooks.training import ddp
from worker_hooks.training.digests import all_finite, tensors_digest, value_digest
from worker_hooks.training.tracked import Parts, Tracked

Fingerprint = dict[str, Any]


def take(tracked: Tracked, parts: Parts, *, step: int, world_size: int, algorithm: str) -> Fingerprint:
    """This rank's fingerprint. Shared buffers apart: the ones that count are rank 0's."""
    shared, own = tracked.buffers(world_size)
    parameters = tracked.parameters()
    return {
        "step": step,
        "parameters": tensors_digest(parameters, algorithm),
        "buffers": tensors_digest(own, algorithm),
        "shared_buffers": tensors_digest(shared, algorithm),
        "optimizer": _optimizer_digest(tracked, parts, algorithm),
        "learning_rate": learning_rates(tracked),
        "objects": {name: _object_digest(name, parts, algorithm) for name in sorted(tracked.others)},
        "finite": all_finite(parameters.values()),
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


def _optimizer_digest(tracked: Tracked, parts: Parts, algorithm: str) -> str:
    """State and settings without the learning rate, which has a check of its own."""
    tensors = {key: value for key, value in tracked.optimizer_tensors().items() if not key.endswith(".lr")}
    settings = []
    for name in sorted(tracked.optimizers):
        values = parts.values[name]
        groups = [{k: v for k, v in group["settings"].items() if k != "lr"} for group in values["groups"]]
        settings.append([name, groups, values["state"]])
    return value_digest([tensors_digest(tensors, algorithm), settings], algorithm)


def _object_digest(name: str, parts: Parts, algorithm: str) -> str:
    tensors = {key: value for key, value in parts.own.items() if key == name or key.startswith(f"{name}.")}
    return value_digest([parts.values[name], tensors_digest(tensors, algorithm)], algorithm)
