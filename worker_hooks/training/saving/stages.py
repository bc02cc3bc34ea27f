"""The buffer that all saves of a rank share, and what did not change from one save to the next."""

from collections.abc import Collection
from pathlib import Path

import torch

from worker_hooks.training.files.share_files import BLOCK
from worker_hooks.training.saving.share_writer import Place, Written
from worker_hooks.training.saving.shares import Share
from worker_hooks.training.saving.staging import Buffer, PieceStage, Stage, lay_out, room

# Less than this in all is not worth a file of its own, nor a chunk smaller than that a place in it.
LEAST_KEPT = 1 << 20
LEAST_CHUNK = 4096


class Stages:
    """Stages shares one after the other in the same memory. `limit`: the most bytes of it.

    Which chunks lie apart is learned: those that the last two saves wrote alike. So a dense state is never digested
    beforehand, and a frozen part is written twice and from then on linked.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < BLOCK:
            raise ValueError(f"host_memory={limit}: at least {BLOCK} bytes")
        self.kept: list[Path] = []
        self._limit = None if limit is None else limit // BLOCK * BLOCK
        self._buffer: Buffer | None = None
        self._stage: Stage | None = None
        self._digests: dict[Place, str] = {}
        self._alike: frozenset[Place] = frozenset()
        self._laid_out = self._alike  # what lies apart in the stage at hand

    def stage(self, share: Share, tensors: list[torch.Tensor]) -> Stage | PieceStage:
        """Where the share's tensors are to be copied (`fill`); or, beyond the limit, what copies them piece by piece
        while they are written. No save may be in flight.
        """
        if self._stage is not None and self._stage.share is share and self._laid_out == self._alike:
            self._stage.begin()
            return self._stage
        pinned = any(tensor.is_cuda for tensor in tensors)
        images, self._laid_out = lay_out(share.chunks, self._apart(share)), self._alike
        if self._limit is not None and room(images) > self._limit:
            self._stage, images = None, lay_out(share.chunks)
            return PieceStage(share, images, self._memory(self._limit, pinned=pinned), tensors)
        self._stage = Stage(share, images, self._memory(room(images), pinned=pinned))
        return self._stage

    def allocate(self, share: Share, *, pinned: bool) -> None:
        """Find the memory before it is needed. One page more: files apart begin on a block of their own."""
        size = room(lay_out(share.chunks)) + BLOCK
        self._memory(size if self._limit is None else min(size, self._limit), pinned=pinned)

    def learn(self, share: Share, written: Written) -> None:
        """After a save: what it wrote, and what of it is as it was."""
        same = {place for place, digest in written.digests.items() if self._digests.get(place) == digest}
        sizes = {chunk.place: chunk.bytes for chunk in share.chunks}
        alike = frozenset(place for place in same if sizes[place] >= LEAST_CHUNK)
        self._alike = alike if sum(sizes[place] for place in alike) >= LEAST_KEPT else frozenset()
        self._digests = dict(written.digests)
        if written.kept is not None:
            self.kept = [written.kept, *self.kept[:2]]

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()

    def _apart(self, share: Share) -> Collection[int]:
        return [index for index, chunk in enumerate(share.chunks) if chunk.place in self._alike] if self._alike else ()

    def _memory(self, size: int, *, pinned: bool) -> Buffer:
        if self._buffer is None or self._buffer.size < size:
            self._stage = None
            self._buffer = Buffer(size, pinned=pinned)
        return self._buffer
