"""Losses and metrics that are still on their way from the device.

`run.step` must not wait for a device. A tensor is copied asynchronously into a preallocated buffer and read at a later
step, by address, so that not even a CPU tensor is asked for its value through torch.
"""

import ctypes
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch

SLOTS = 4096


@dataclass(frozen=True)
class Point:
    """One step's values; a name whose value could not be kept is missing."""

    step: int
    at: float
    values: dict[str, float]


@dataclass
class _Entry:
    step: int
    at: float
    values: dict[str, float | int]
    slots: dict[str, int]
    ready: Any


class PendingValues:
    """First in, first out. Values come out in step order, at the earliest one call after they went in."""

    def __init__(self) -> None:
        self.dropped = 0
        self._entries: deque[_Entry] = deque()
        self._buffer: torch.Tensor | None = None
        self._slots: tuple[torch.Tensor, ...] = ()
        self._used = 0
        self._next = 0

    def put(self, step: int, values: dict[str, Any]) -> None:
        """Numbers are kept, one-element tensors are copied without waiting; None is left out.

        Anything else is dropped and counted.
        """
        entry = _Entry(step, time.time(), {}, {}, None)
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                slot = self._copy(value)
                if slot is not None:
                    entry.slots[name] = slot
                    entry.ready = _event(value) or entry.ready
            elif isinstance(value, SupportsFloat):
                entry.values[name] = float(value)
            elif value is not None:
                self.dropped += 1
        self._entries.append(entry)

    def take(self, *, before: int | None = None) -> Iterator[Point]:
        """Points of steps below `before` that have arrived; with None all of them, waiting for the device."""
        while self._entries:
            entry = self._entries[0]
            if before is not None and (entry.step >= before or not (entry.ready is None or entry.ready.query())):
                return
            if before is None and entry.ready is not None:
                entry.ready.synchronize()
            self._entries.popleft()
            self._used -= len(entry.slots)
            read = {name: self._read(slot) for name, slot in entry.slots.items()}
            yield Point(entry.step, entry.at, {**entry.values, **read})

    def _copy(self, value: torch.Tensor) -> int | None:
        if value.numel() != 1 or self._used >= SLOTS:
            self.dropped += 1
            return None
        if self._buffer is None:
            # float64 holds every float32, float16 and bfloat16 exactly. Pinned, or the copy would wait.
            self._buffer = torch.zeros(SLOTS, dtype=torch.float64, pin_memory=value.is_cuda)
            self._slots = self._buffer.unbind()  # once: indexing costs as much as the copy
        slot = self._next
        value = value.detach()
        self._slots[slot].copy_(value if value.dim() == 0 else value.reshape(()), non_blocking=True)
        self._next, self._used = (slot + 1) % SLOTS, self._used + 1
        return slot

    def _read(self, slot: int) -> float:
        assert self._buffer is not None
        return ctypes.c_double.from_address(self._buffer.data_ptr() + 8 * slot).value


def _event(value: torch.Tensor) -> Any:
    if not value.is_cuda:
        return None
    event = torch.cuda.Event()
    event.record()
    return event
