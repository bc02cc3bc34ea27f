"""Tensors that hold what was stored for another one: two layers or ranks exchanged, an average in the model's place.

Found by the digests alone. A tensor of one value, such as a bias of zeros, says nothing about where it came from.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from worker_hooks.training.files.digests import local_tensor
from worker_hooks.training.resuming.live_digests import Compared
from worker_hooks.training.resuming.share_index import Place
from worker_hooks.training.state import names
from worker_hooks.training.state.tracked import Tracked, is_average

SWAPPED = {"parameters": "WEIGHTS_SWAPPED", "optimizer": "STATE_SWAPPED"}
# What averages of torch, torch_ema, diffusers, lucidrains' ema and of many scripts count their updates under.
_COUNTS = ("n_averaged", "num_updates", "optimization_step", "updates", "update_count", "count", "step", "steps")


def exchanged(
    found: Compared, live: Mapping[str, torch.Tensor], stored: Mapping[Place, str], keys: Mapping[str, str]
) -> list[str]:
    """`model/a holds model/b`, for each differing tensor whose bits are stored in another place. `keys`: by name, what
    this rank's tensors are stored under; a key that is none of them is another rank's."""
    names = {key: name for name, key in keys.items()}
    places = {digest: _label(names.get(key, key), offsets) for (key, offsets), digest in sorted(stored.items())}
    said = []
    for label in found.differing:
        holds = places.get(found.actual[label])
        if holds is not None and holds != label and not _is_one_value(live, label):
            said.append(f"{label} holds what was stored as {holds}")
    return said


def stored_average(
    tracked: Tracked, values: Mapping[str, Any], stored: Mapping[Place, str], keys: Mapping[str, str], step: int
) -> tuple[str, str] | None:
    """(model, average), where all trained parameters of a model are stored as those of an average too, though that has
    averaged more than once. `values`: the JSON values. An average that counts nothing has averaged since step 1."""
    digests: dict[str, set[str]] = {}
    for (key, _), digest in stored.items():
        digests.setdefault(key, set()).add(digest)
    known = _averages(tracked)
    for average in known:
        inside = {name: key for name, key in keys.items() if _is_of(average, name)}
        if _updates(tracked, average, values.get(average), step) <= 1:
            continue
        averaged = {digest for key in inside.values() for digest in digests.get(key, ())}
        for name, model in tracked.models.items():
            trained = _trained(name, model) if name not in known else {}
            same = all(digests.get(keys.get(label, ""), {""}) <= averaged for label in trained)
            if same and not all(_is_one_value(trained, label) for label in trained):
                return name, average
    return None


def _averages(tracked: Tracked) -> list[str]:
    """By name, or because torch's own class made it."""
    counting = [name for name, model in tracked.models.items() if isinstance(model, AveragedModel)]
    return list(dict.fromkeys([*counting, *filter(is_average, (*tracked.models, *tracked.others))]))


def _updates(tracked: Tracked, average: str, value: Any, step: int) -> float:
    """How often it was updated: the least of what it counts."""
    plain = value.items() if isinstance(value, dict) else ()
    buffers = tracked.models[average].named_buffers() if average in tracked.models else ()
    counts = {key.rpartition(".")[2]: float(count) for key, count in buffers if count.numel() == 1}
    counts |= {key: float(count) for key, count in plain if isinstance(count, int)}
    return min((count for key, count in counts.items() if key in _COUNTS), default=float(step))


def _is_of(average: str, name: str) -> bool:
    return name.startswith((f"{average}/", f"{average}."))


def _trained(name: str, model: nn.Module) -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": tensor for key, tensor in names.parameters(model) if tensor.requires_grad}


def _is_one_value(live: Mapping[str, torch.Tensor], label: str) -> bool:
    name = label if label in live else label.rpartition("[")[0]
    flat = local_tensor(live[name]).reshape(-1)
    return flat.numel() == 0 or bool((flat == flat[0]).all())


def _label(name: str, offsets: tuple[int, ...]) -> str:
    return f"{name}{list(offsets)}" if any(offsets) else name
