"""The parallel layout, as far as the tensors say it: the device meshes that parameters are laid out on."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from worker_hooks.training.state import names


def meshes(models: Mapping[str, nn.Module]) -> list[dict[str, Any]]:
    """Each kind of mesh once: its shape, and the names of its dimensions (such as `dp`, `tp`; None if it has none).

    Without the ranks in it, which differ where a mesh is one of several parts. Empty where nothing is sharded.
    """
    found: dict[str, dict[str, Any]] = {}
    for model in models.values():
        for _, parameter in names.parameters(model):
            if names.is_sharded(parameter):
                mesh: Any = parameter.device_mesh
                dims = mesh.mesh_dim_names
                plain = {
                    "device": mesh.device_type,
                    "shape": list(mesh.shape),
                    "names": list(dims) if dims else None,
                }
                found.setdefault(str(plain), plain)
    return [found[key] for key in sorted(found)]
