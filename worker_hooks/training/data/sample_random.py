"""Random numbers per sample, so that augmentation is the same after a resume, in any loader worker.

A worker's generators are seeded when it starts and nobody can save their state: after a resume the right samples come
with another augmentation. Seeded from (seed, epoch, sample id) before each sample they need no saving at all.
"""

import hashlib
import importlib
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from worker_hooks.training.data.orders import tellable

_LAYERS = 16


class PerSampleRandom(Dataset[Any]):  # type: ignore[misc]
    """`DataLoader(PerSampleRandom(dataset, seed=…), …)`: the same samples, with random numbers of their own.

    Before each sample the global generators of `random`, numpy and torch (CPU) are seeded; what `dataset` draws from
    them depends on seed, epoch and sample id alone, not on the number of workers or ranks. In the main process they are
    as before afterwards: training draws what it would have drawn. Generators that the dataset owns are not touched.

    `run.epochs` sets the epoch; a loop without Relume calls `set_epoch`. Persistent workers see it too: it lies in
    shared memory. `batched`: use the dataset's own `__getitems__`, with one seed from all ids of the batch, so the same
    batches give the same numbers; without it each sample is asked for by itself. An IterableDataset has no sample ids
    and is refused with TypeError: its random state belongs into its `state_dict`.
    """

    def __init__(self, dataset: Any, *, seed: int = 0, batched: bool = False) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError("PerSampleRandom needs sample ids, which an IterableDataset does not have")
        if batched and not callable(getattr(dataset, "__getitems__", None)):
            raise TypeError(f"PerSampleRandom(batched=True): {type(dataset).__name__} has no __getitems__")
        self.dataset = dataset
        self.seed = seed
        self.batched = batched
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        self._epoch[0] = epoch

    def __getitem__(self, index: Any) -> Any:
        with self._seeded(_name(index)):
            return self.dataset[index]

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], Any] | None:
        """What a DataLoader asks for a whole batch, if there is such a thing."""
        return self._batch if self.batched else None

    def _batch(self, indices: Sequence[Any]) -> Any:
        with self._seeded(",".join(_name(index) for index in indices)):
            return self.dataset.__getitems__(indices)

    @contextmanager
    def _seeded(self, name: str) -> Iterator[None]:
        state = _capture() if get_worker_info() is None else None
        _seed(hashlib.sha256(f"{self.seed}:{int(self._epoch)}:{name}".encode()).digest())
        try:
            yield
        finally:
            if state is not None:
                _put_back(state)


def doubt(loader: Any) -> str | None:
    """Why augmentation in this loader's workers, or in what a framework loads ahead of training, cannot be the same
    after a resume; None where nothing speaks for that.

    Datasets known to draw nothing, and those that say so (`draws_random = False`), need no random numbers.
    """
    workers = getattr(loader, "num_workers", 0)
    dataset = getattr(loader, "dataset", None)
    if not (workers or getattr(loader, "loads_ahead", 0)) or dataset is None or _is_exact(dataset):
        return None
    if not workers:
        return (
            f"what {type(dataset).__name__} draws for the batch that is loaded ahead is drawn anew: wrap it in "
            "PerSampleRandom, or set draws_random = False on it if it draws nothing"
        )
    return (
        f"what {type(dataset).__name__} draws in {workers} loader workers starts anew: wrap it in PerSampleRandom, or "
        "set draws_random = False on it if it draws nothing"
    )


def tell_epoch(loader: Any, epoch: int) -> None:
    """To the loader, its samplers and its dataset, whichever wants to know."""
    told: list[Any] = []
    for target in (*tellable(loader), *_layers(getattr(loader, "dataset", None))):
        tell = getattr(target, "set_epoch", None)
        if callable(tell) and not any(target is other for other in told):
            tell(epoch)
            told.append(target)


def _is_exact(dataset: Any) -> bool:
    for layer in _layers(dataset):
        if isinstance(layer, PerSampleRandom) or getattr(layer, "draws_random", None) is False:
            return True
        if type(layer) in (ConcatDataset, StackDataset):
            parts = layer.datasets.values() if isinstance(layer.datasets, dict) else layer.datasets
            return all(_is_exact(part) for part in parts)
        if type(layer) is not Subset:
            return type(layer) in (TensorDataset, list, tuple, range)
    return False


def _layers(dataset: Any) -> Iterator[Any]:
    """A dataset and what it wraps, outermost first."""
    for _ in range(_LAYERS):
        if dataset is None or isinstance(dataset, DataLoader):
            return
        yield dataset
        dataset = getattr(dataset, "dataset", None)


def _name(index: Any) -> str:
    """A number is the same sample whatever type it has."""
    try:
        return str(operator.index(index))
    except TypeError:
        return repr(index)


def _numpy() -> Any:
    """numpy's random module, or None without numpy. Imported before it is used: a first import inside the dataset would
    come too late to be seeded."""
    try:
        return importlib.import_module("numpy.random")
    except ImportError:
        return None


def _seed(digest: bytes) -> None:
    words = [int.from_bytes(digest[start : start + 4], "little") for start in range(0, 16, 4)]
    random.seed(digest[:16])
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    numpy = _numpy()
    if numpy is not None:
        numpy.seed(words)


def _capture() -> tuple[Any, Any, Any]:
    numpy = _numpy()
    return random.getstate(), torch.get_rng_state(), numpy.get_state() if numpy is not None else None


def _put_back(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    if state[2] is not None:
        _numpy().set_state(state[2])
