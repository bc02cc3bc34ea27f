"""The tensors in memory after a load against the digests of the chunks they came from, name by name.

A replicated tensor is compared whole; of a sharded one this rank's part, if a stored chunk has the same place. After a
change of the number of ranks it often has not: then its bytes were verified at the source and no claim is made here.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

from worker_hooks.digests import algorithm_of
from worker_hooks.training.files.digests import bytes_digest, local_tensor, raw_bytes, value_digest
from worker_hooks.training.resuming.share_reader import SharesReader
from worker_hooks.training.state import names

NAMED = 5
_HASHERS = 2  # they release the GIL
_BATCH = 4 << 20
_Part = tuple[str, torch.Tensor, str]  # its label, its numbers on the CPU, the algorithm


@dataclass
class Compared:
    """`differing` in the order of the names. `elsewhere`: what has no stored chunk at its place."""

    expected: dict[str, str] = field(default_factory=dict)
    actual: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)

    @property
    def differing(self) -> list[str]:
        return [name for name in sorted(self.expected) if self.expected[name] != self.actual[name]]

    def summary(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(expected, actual) as a check reports them: one digest over all, and the first names that differ."""
        said = [{"tensors": len(found), "digest": value_digest(found)} for found in (self.expected, self.actual)]
        if self.differing:
            said[1] |= {"differing": len(self.differing), "first": self.differing[:NAMED]}
        if self.elsewhere:
            said[1]["not_compared"] = len(self.elsewhere)
        return said[0], said[1]


def compare(reader: SharesReader, stored: Mapping[str, str], live: Mapping[str, torch.Tensor]) -> Compared:
    """`live` by name; `stored` says under which key each name is stored. Reads version 1 once more, to digest it."""
    found = Compared()
    with ThreadPoolExecutor(_HASHERS) as pool:
        parts = _comparable(found, reader, stored, live)
        for digests in [pool.submit(_digests, batch) for batch in _batches(parts)]:
            found.actual.update(digests.result())
    return found


def _comparable(
    found: Compared, reader: SharesReader, stored: Mapping[str, str], live: Mapping[str, torch.Tensor]
) -> Iterator[_Part]:
    """What is left to be digested, once everything else that is to be found is in `found`."""
    for name, tensor in live.items():
        for offsets, local in _local_parts(name, tensor):
            expected = reader.digest((stored[name], offsets), tuple(local.shape)) if name in stored else None
            if expected is None:
                found.elsewhere.append(name)
                continue
            label = name if not any(offsets) else f"{name}{list(offsets)}"
            found.expected[label] = expected
            part = label, local, algorithm_of(expected)
            if tensor.device.type == "cpu":
                yield part
            else:  # a copy from a device: one at a time, or the host would hold them all
                found.actual.update(_digests([part]))


def _batches(parts: Iterator[_Part]) -> Iterator[list[_Part]]:
    """As many small tensors at a time as are worth the way to another thread."""
    batch: list[_Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += part[1].nbytes
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _local_parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """Where this rank's part lies in the whole, as DCP would plan it, and the part itself on the CPU."""
    if not names.is_sharded(tensor):
        yield (0,) * tensor.dim(), local_tensor(tensor)
        return
    for item in create_default_local_save_plan({name: tensor}, is_coordinator=True).items:
        yield tuple(item.tensor_data.chunk.offsets), local_tensor(tensor)


def _digests(parts: list[_Part]) -> dict[str, str]:
    return {label: bytes_digest(raw_bytes(local), algorithm) for label, local, algorithm in parts}
