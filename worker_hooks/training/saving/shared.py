"""A rank's part of a checkpoint on shared storage. `tiers.local` has the same two calls for the node's own disk."""

from dataclasses import dataclass
from pathlib import Path

from worker_hooks.protocol.manifest import folder_name
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving import writing_rank
from worker_hooks.training.saving.share_writer import Written
from worker_hooks.training.saving.snapshot import Snapshot
from worker_hooks.training.saving.stages import Stages


@dataclass(frozen=True)
class Part:
    """What a rank wrote, and its rank file's bytes."""

    written: Written
    rank_file: bytes


class SharedTier:
    def __init__(self, identity: Identity, node: str, stages: Stages) -> None:
        self._me = identity
        self._node = node
        self._stages = stages

    def place(self, step: int) -> Path:
        """Where the manifest of that step will be."""
        return self._me.run / folder_name(step, self._me.generation)

    def write(self, snapshot: Snapshot, before: Part | None) -> Part:
        """Durable and vouched for when this returns. `before`: the same step on another tier, whose rank file says all
        that this one's would. Raises OSError, CheckpointError."""
        folder, me = self.place(snapshot.step), self._me
        written = writing_rank.write(folder, me, snapshot, self._stages.kept)
        if before is None:
            rank_file = writing_rank.describe(me, snapshot, written, {"node": self._node})
        elif written.files == before.written.files:
            rank_file = before.rank_file
        else:
            raise CheckpointError(f"{folder.name}: rank {me.rank} wrote other bytes than to its node")
        writing_rank.vouch(folder, me.rank, rank_file)
        return Part(written, rank_file)

    def remove(self, step: int) -> None:
        """The half-written part makes room at once: the next save may need it."""
        writing_rank.remove(self.place(step), self._me.rank)
