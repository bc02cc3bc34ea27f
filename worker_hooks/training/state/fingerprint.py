"""What a run is at a step boundary, in a few digests: written at a save, computed again after a load, compared.

Version 2 (`summary`) holds what the chunks' own digests do not say. It costs the training thread a sample.
"""

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch

from worker_hooks._version import __version__
from worker_hooks.training.files.digests import tensors_digest, value_digest
from worker_hooks.training.state import ddp, names, parallel
from worker_hooks.training.state.tracked import Parts, Tracked

Fingerprint = dict[str, Any]
_SAMPLED = 64


def summary(tracked: Tracked, parts: Parts, *, step: int, world_size: int, algorithm: str) -> Fingerprint:
    """This rank's, without what the digests of the chunks and of the objects say."""
    return {
        **glance(tracked, parts, step=step, world_size=world_size, algorithm=algorithm),
        "settings": settings_digest({name: parts.values[name] for name in tracked.optimizers}, algorithm),
    }


def glance(tracked: Tracked, parts: Parts, *, step: int, world_size: int, algorithm: str) -> Fingerprint:
    """What must be looked at before training goes on; all else a writer in the background finds over its copies."""
    return {
        "version": 2,
        "step": step,
        "learning_rate": learning_rates(tracked),
        "replicas": _replicas_digest(parts, step, algorithm) if world_size > 1 else None,
        "replicated_shards": _shards_digests(parts, step, algorithm) if world_size > 1 else {},
    }


def layout(tracked: Tracked, world_size: int) -> dict[str, Any]:
    """What else the bits depend on. Collective among DDP's ranks the first time (see ddp.bucket_order)."""
    return {
        "world_size": world_size,
        "buckets": {path: ddp.bucket_order(replica) for path, replica in ddp.replicas(tracked.models).items()},
        **parallel.layout(tracked.models),
    }


def learning_rates(tracked: Tracked) -> list[str]:
    """Of every group of every optimizer, exactly."""
    return [rate.hex() for optimizer in tracked.optimizers.values() for rate in rates_of(optimizer)]


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


@cache
def versions() -> dict[str, str | None]:
    """What the bits may depend on."""
    numpy = metadata.version("numpy") if find_spec("numpy") else None
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": numpy,
        "worker_hooks": __version__,
    }


def settings_digest(optimizers: Mapping[str, Any], algorithm: str) -> str:
    """Settings and plain state of the optimizers' JSON values by name. The learning rate has a check of its own."""
    settings = []
    for name in sorted(optimizers):
        groups = [{k: v for k, v in group["settings"].items() if k != "lr"} for group in optimizers[name]["groups"]]
        settings.append([name, groups, optimizers[name]["state"]])
    return value_digest(settings, algorithm)


def placeless_settings_digest(optimizers: Mapping[str, Any], algorithm: str) -> str:
    """The same, but for how the tensors of the state lie on ranks and devices."""
    return settings_digest({name: _placeless(value) for name, value in optimizers.items()}, algorithm)


def _placeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_placeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    described = value.get("$") == "state"
    return {key: _placeless(item) for key, item in value.items() if not (described and key in ("like", "cpu"))}


def object_digests(values: Mapping[str, Any], own: Mapping[str, torch.Tensor], algorithm: str) -> dict[str, str]:
    """By name, over an object's JSON values and the tensors inside it."""
    return {name: _object_digest(name, values[name], own, algorithm) for name in sorted(values)}


def _object_digest(name: str, value: Any, own: Mapping[str, torch.Tensor], algorithm: str) -> str:
    tensors = {key: tensor for key, tensor in own.items() if key == name or key.startswith(f"{name}.")}
    return value_digest([value, tensors_digest(tensors, algorithm)], algorithm)


def diverged(fingerprints: Mapping[int, Fingerprint]) -> list[list[int]]:
    """Ranks in groups that hold the same sample of what should be equal on all of them; [] where all agree.

    Ranks are compared with those that hold the same shards only.
    """
    samples: dict[str, dict[str, list[int]]] = {}
    for rank, found in sorted(fingerprints.items()):
        replicas = found.get("replicas")
        for place, digest in {**(found.get("replicated_shards") or {}), **({"": replicas} if replicas else {})}.items():
            samples.setdefault(place, {}).setdefault(digest, []).append(rank)
    return [ranks for groups in samples.values() if len(groups) > 1 for ranks in groups.values()]


def _replicas_digest(parts: Parts, step: int, algorithm: str) -> str:
    """Over a sample of what should be equal on all ranks: at most 64 tensors, other ones at each step, some values of
    each. A save must not cost more for it the more tensors there are."""
    equal = {k: v for k, v in parts.shared.items() if not names.is_sharded(v) and k not in parts.from_rank_zero}
    return tensors_digest({key: _sample(equal[key]) for key in _chosen(equal, step)}, algorithm)


def _shards_digests(parts: Parts, step: int, algorithm: str) -> dict[str, str]:
    """The same over the shards that other ranks hold too (a mesh that also replicates), by where they lie."""
    sharded: dict[str, Any] = {key: tensor for key, tensor in parts.shared.items() if names.is_sharded(tensor)}
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key in _chosen(sharded, step):
        place = parallel.shard_of(sharded[key])
        if place is not None:
            mesh = value_digest(sharded[key].device_mesh.mesh.tolist(), algorithm)
            found.setdefault(f"{place} of {mesh}", {})[key] = _sample(sharded[key].to_local())
    return {place: tensors_digest(tensors, algorithm) for place, tensors in found.items()}


def _chosen(tensors: Mapping[str, Any], step: int) -> list[str]:
    stride = -(-len(tensors) // _SAMPLED) or 1
    return sorted(tensors)[step % stride :: stride]


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """No copy of the whole: of a strided tensor its first row."""
    if not tensor.is_contiguous():
        tensor = tensor[(0,) * (tensor.dim() - 1)]
        return tensor[:_SAMPLED]
    flat = tensor.view(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)]
