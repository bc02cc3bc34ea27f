"""Tensors that hold what was stored for another one: two layers or ranks exchanged, an average in the model's place.

Found by the digests alone. A tensor of one value, such as a bias of zeros, says nothing about where it came from.
"""

from collections.abc import Mapping

import torch

from worker_hooks.training.files.digests import local_tensor
from worker_hooks.training.resuming.live_digests import Compared
from worker_hooks.training.resuming.share_index import Place

SWAPPED = {"parameters": "WEIGHTS_SWAPPED", "optimizer": "STATE_SWAPPED"}
_AVERAGE = "ema"
_COUNT = "n_averaged"


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
    live: Mapping[str, torch.Tensor], stored: Mapping[Place, str], keys: Mapping[str, str]
) -> str | None:
    """The name of the average whose stored tensors are all of the model's, though it has averaged more than once."""
    digests: dict[str, set[str]] = {}
    for (key, _), digest in stored.items():
        digests.setdefault(key, set()).add(digest)
    counts = [tensor for name, tensor in live.items() if _of_average(name) and name.endswith(_COUNT)]
    if not counts or any(float(count) <= 1.0 for count in counts):
        return None
    averaged = {digest for name, key in keys.items() if _of_average(name) for digest in digests.get(key, ())}
    mine = [name for name, tensor in live.items() if name.startswith("model") and _is_weight(name, tensor)]
    same = mine and all(digests.get(keys.get(name, ""), set()) <= averaged for name in mine)
    return _AVERAGE if same and averaged else None


def _of_average(name: str) -> bool:
    return name.partition("/")[0].partition(".")[0] == _AVERAGE


def _is_weight(name: str, tensor: torch.Tensor) -> bool:
    """Floating point, and of the model itself: counters and the like are no part of an average."""
    return "/" in name and tensor.is_floating_point()


def _is_one_value(live: Mapping[str, torch.Tensor], label: str) -> bool:
    name = label if label in live else label.rpartition("[")[0]
    flat = local_tensor(live[name]).reshape(-1)
    return flat.numel() == 0 or bool((flat == flat[0]).all())


def _label(name: str, offsets: tuple[int, ...]) -> str:
    return f"{name}{list(offsets)}" if any(offsets) else name
