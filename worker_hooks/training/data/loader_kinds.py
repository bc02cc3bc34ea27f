"""The kinds of loader, by what can be known of their position and how they get back there.

`resumable`: over our `ResumableSampler`, starts at any sample. `distributed`: over torch's `DistributedSampler`, whose
order is known but which starts at the beginning only, and pads. `stateful`: has `state_dict` itself (torchdata's
StatefulDataLoader). `dataset`: an IterableDataset with `state_dict`, read in this process. `replay`: everything else.
`distributed` and `replay` are iterated from the epoch's beginning, and the batches that were consumed are thrown away.
"""

import base64
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, SequentialSampler

from worker_hooks.training.data.orders import (
    DistributedOrder,
    Order,
    ResumableOrder,
    distributed_sampler,
    resumable_sampler,
    sampler_of,
)
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.state import random_state
from worker_hooks.training.state.codec import Tensors, decode, encode


def kind_of(loader: Any) -> str:
    """A sampler that we know goes before a state that we do not. A loader that was prepared by somebody else says
    what is known of its order (`worker_hooks.integrations`)."""
    if hasattr(loader, "known_order"):
        return "replay" if loader.known_order is None else "distributed"
    if resumable_sampler(loader) is not None:
        return "resumable"
    if _has_state(loader):
        return "stateful"
    if distributed_sampler(loader) is not None:
        return "distributed"
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset) and _has_state(dataset) and not getattr(loader, "num_workers", 0):
        return "dataset"
    return "replay"


def kind_at_the_save(position: dict[str, Any]) -> str:
    """Positions from before kinds were written have a key that only one of them had."""
    if "kind" in position:
        return str(position["kind"])
    keys = {"consumed": "resumable", "loader_state": "stateful", "epoch_random": "replay"}
    return next((kind for key, kind in keys.items() if key in position), "unknown")


def same_kind(saved: str, now: str) -> bool:
    """Before `distributed` was told apart it was replayed like any other."""
    return saved == now or (saved, now) == ("replay", "distributed")


def order_of(loader: Any) -> Order | None:
    if hasattr(loader, "known_order"):
        order: Order | None = loader.known_order
        return order
    kind = kind_of(loader)
    if kind == "resumable":
        return ResumableOrder(resumable_sampler(loader))  # type: ignore[arg-type]
    return DistributedOrder(distributed_sampler(loader)) if kind == "distributed" else None


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


# --- batches ----------------------------------------------------------------------------------------------------


def batch_size(loader: Any) -> int:
    """Samples in a full batch of one rank; 1 for a loader that does not batch."""
    size = size_of_batch(loader)
    if size is None and getattr(loader, "batch_sampler", None) is None:
        return 1
    if not isinstance(size, int):
        raise CheckpointError("a loader over a ResumableSampler or DistributedSampler needs a batch_size")
    return size


def size_of_batch(loader: Any) -> Any:
    """None where no number says."""
    return getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def batches_in(loader: Any, samples: int) -> int:
    """How many batches the loader makes of so many samples of one rank."""
    size = batch_size(loader)
    holder = getattr(loader, "batch_sampler", None) or loader
    return samples // size if getattr(holder, "drop_last", False) else math.ceil(samples / size)


def length(loader: Any) -> int | None:
    """Batches of a whole epoch, where the loader knows."""
    try:
        return len(loader)
    except TypeError:
        return None


def sequential_ids(loader: Any, batches: int) -> list[int] | None:
    """The ids of the next batch of a loader that does not shuffle; None for any other."""
    if type(sampler_of(loader)) is not SequentialSampler or getattr(loader, "batch_sampler", None) is None:
        return None
    size = batch_size(loader)
    return list(range(len(loader.dataset))[batches * size : (batches + 1) * size])


# --- state ------------------------------------------------------------------------------------------------------


def read_state(holder: Any) -> dict[str, Any]:
    """The state of a loader or dataset as JSON; reading it may draw random numbers, which are put back."""
    before = random_state.capture()
    state = holder.state_dict()
    random_state.restore(before)
    tensors: Tensors = {}
    return {"value": encode(state, "loader", tensors), "tensors": {key: _pack(item) for key, item in tensors.items()}}


def write_state(holder: Any, stored: Any) -> None:
    """Before `iter()`: the other way round a loader silently starts at the wrong batch."""
    tensors = {}
    if isinstance(stored, dict) and set(stored) == {"value", "tensors"}:
        tensors = {key: _unpack(item) for key, item in stored["tensors"].items()}
        stored = stored["value"]
    holder.load_state_dict(decode(stored, tensors))


def demand_same_batches(loader: Any, position: dict[str, Any], kind: str) -> None:
    """Refuses what would silently give other samples, where nothing else would notice.

    A loader's own state belongs to its number of workers, and fails without a word of explanation. Consumed batches are
    counted, so they have to be as large as they were, and of an IterableDataset as many workers have to deal them.
    """
    streamed = kind == "replay" and isinstance(getattr(loader, "dataset", None), IterableDataset)
    before, now = position.get("num_workers"), getattr(loader, "num_workers", None)
    if (kind == "stateful" or streamed) and before is not None and now is not None and before != now:
        cure = "which does not mind" if kind == "stateful" else "or give the dataset a state_dict"
        raise CheckpointMismatch(
            f"the loader had num_workers={before} at the save and has {now} now; its place fits only the same number: "
            f"set num_workers={before}, or use a ResumableSampler, {cure}"
        )
    before, now = position.get("batch_size"), size_of_batch(loader)
    if kind in ("stateful", "replay") and before is not None and before != now:
        raise CheckpointMismatch(
            f"the loader had batch_size={before} at the save and has {now} now; its place is counted in batches of "
            f"that size: set batch_size={before}, or use a ResumableSampler, which counts samples"
        )


def unshared(kind: str, before: int, now: int) -> str:
    return (
        f"the position of a {kind} loader is each rank's own: on {now} instead of {before} ranks samples may come "
        "twice or never; a ResumableSampler continues exactly"
    )


def demand_whole_batches(consumed: int, size: int, ranks: int) -> None:
    if consumed % (size * ranks):
        raise CheckpointError(
            f"{consumed} samples were consumed, which is no whole number of batches of {size} on {ranks} ranks, and a "
            "DistributedSampler starts nowhere else; choose another batch size or a ResumableSampler"
        )


def generators(loader: Any) -> dict[str, torch.Generator]:
    """Generators of the loader's own, which the process's random state does not hold."""
    found: dict[str, torch.Generator] = {}
    for name, holder in (("loader", loader), ("sampler", sampler_of(loader))):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found.values()):
            found[name] = generator
    return found


def capture_generators(loader: Any) -> dict[str, Any]:
    return {name: _pack(generator.get_state()) for name, generator in generators(loader).items()}


def restore_generators(loader: Any, stored: dict[str, Any]) -> None:
    for name, generator in generators(loader).items():
        if name in stored:
            generator.set_state(_unpack(stored[name]))


def batches_ahead(loader: Any, iterator: Any) -> int | None:
    """Batches that workers were asked for and that were not handed out yet. Torch counts them in private names, so None
    where those are gone."""
    if not getattr(loader, "num_workers", 0):
        return 0
    sent, received = getattr(iterator, "_send_idx", None), getattr(iterator, "_rcvd_idx", None)
    return sent - received if isinstance(sent, int) and isinstance(received, int) else None


def skip(iterator: Iterator[Any], count: int) -> None:
    """Throw away `count` batches. Raises CheckpointError where there are fewer."""
    for done in range(count):
        if next(iterator, skip) is skip:
            raise CheckpointError(f"the loader ended after {done} batches; {count} were consumed")


def _pack(tensor: torch.Tensor) -> dict[str, Any]:
    data = bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist())
    kind = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": kind, "size": list(tensor.shape), "base64": base64.b64encode(data).decode()}


def _unpack(stored: dict[str, Any]) -> torch.Tensor:
    kind = getattr(torch, stored["dtype"], None)
    data = bytearray(base64.b64decode(stored["base64"]))
    if not isinstance(kind, torch.dtype):
        raise CheckpointError(f"unknown type of tensor {stored['dtype']!r} in a loader's state")
    return torch.frombuffer(data, dtype=kind).view(stored["size"]) if data else torch.empty(stored["size"], dtype=kind)


def _has_state(holder: Any) -> bool:
    return callable(getattr(holder, "state_dict", None)) and callable(getattr(holder, "load_state_dict", None))
