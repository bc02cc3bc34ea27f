"""The parallel layout, as far as the tensors say it: the device meshes that parameters are laid out on, and how."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from worker_hooks.training.files.digests import value_digest
from worker_hooks.training.state import names


def layout(models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """How the parameters lie on device meshes; empty and None where nothing is sharded.

    `meshes`: each kind once, its shape and the names of its dimensions (such as `dp`, `tp`; None if it has none),
    without the ranks in it, which differ where a mesh is one of several parts. `mesh_ranks`: digest of which ranks
    stand where on this rank's meshes: in another order they hold other shards. `placements`: `kinds` counts them for a
    reader, `digest` tells which parameter lies how.
    """
    meshes: dict[str, Any] = {}
    placed: dict[str, str] = {}
    for model_name, model in models.items():
        for name, parameter in names.parameters(model):
            if names.is_sharded(parameter):
                mesh: Any = parameter.device_mesh
                meshes.setdefault(str(mesh), mesh)
                placed[f"{model_name}/{name}"] = f"{_how(parameter)} on {list(mesh.shape)}"
    kinds = {str(found): found for found in map(_kind, meshes.values())}
    ranks = sorted((mesh.mesh.tolist() for mesh in meshes.values()), key=str)
    return {
        "meshes": [kinds[key] for key in sorted(kinds)],
        "mesh_ranks": value_digest(ranks, "sha256") if ranks else None,
        "placements": {
            "kinds": dict(sorted(Counter(placed.values()).items())),
            "digest": value_digest(placed, "sha256") if placed else None,
        },
    }


def shard_of(tensor: Any) -> str | None:
    """Which shard this rank holds, if another rank holds the same; None if it is nobody else's."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None or any(how.is_partial() for how in tensor.placements):
        return None
    shape = tensor.device_mesh.shape
    if all(size == 1 for size, how in zip(shape, tensor.placements, strict=True) if how.is_replicate()):
        return None
    return str([place for place, how in zip(coordinate, tensor.placements, strict=True) if not how.is_replicate()])


def _kind(mesh: Any) -> dict[str, Any]:
    dims = mesh.mesh_dim_names
    return {"device": mesh.device_type, "shape": list(mesh.shape), "names": list(dims) if dims else None}


def _how(parameter: Any) -> str:
    return ", ".join(
        f"shard({how.dim})" if how.is_shard() else "replicate" if how.is_replicate() else str(how)
        for how in parameter.placements
    )
