"""A rank's part of a checkpoint on its own node: a disk, or a folder in memory (docs/formats.md section 6).

The share lies on the node, and where there is a partner node on that one too. The rank file alone goes to the index on
shared storage, last: what it says is true from then on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from worker_hooks.protocol.durable import sync_folder
from worker_hooks.protocol.manifest import MANIFEST, folder_name, rank_file_name
from worker_hooks.protocol.tiers import LOCAL, shelf
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving import writing_rank
from worker_hooks.training.saving.share_writer import Written
from worker_hooks.training.saving.shared import Part
from worker_hooks.training.saving.snapshot import Snapshot
from worker_hooks.training.saving.staging import PieceStage
from worker_hooks.training.tiers import retention
from worker_hooks.training.tiers.exchange import CopyFailed, time_for
from worker_hooks.training.tiers.in_time import InTime

T = TypeVar("T")


@dataclass(frozen=True)
class Partner:
    """Who keeps a copy of this rank's shares. `put(folder, rank_file)` raises CopyFailed."""

    node: str
    put: Callable[[str, bytes], None]


class LocalTier:
    """`folder`: this run's on this node. `first`: this rank is the first on its node and tidies up. `told`: what became
    of a copy."""

    def __init__(
        self,
        identity: Identity,
        folder: Path,
        *,
        node: str,
        first: bool,
        partner: Partner | None,
        told: Callable[[CopyFailed], None],
    ) -> None:
        self._me = identity
        self._folder = folder
        self._node = node
        self._first = first
        self._partner = partner
        self._told = told
        self._unsettled: Path | None = None
        self._in_time = InTime(str(folder))

    def place(self, step: int) -> Path:
        """Where the manifest of that step will be: in the index."""
        return shelf(self._me.run, LOCAL) / folder_name(step, self._me.generation)

    def write(self, snapshot: Snapshot, before: Part | None) -> Part:
        """Durable on the node and vouched for in the index when this returns; the first tier that is written.

        Raises OSError, CheckpointError, NotNewest. A disk that does not answer is given up, so that shared storage has
        its turn.
        """
        self.tidy()
        self.remove(snapshot.step)  # another run of the same id may have left a share of that name on this node
        index, me = self.place(snapshot.step), self._me
        share = self._folder / index.name
        written = self._written(share, snapshot)
        part = self._copied(snapshot, Part(written, b""), index.name)
        self._on_node(lambda: writing_rank.vouch(share, me.rank, part.rank_file))
        index.mkdir(parents=True, exist_ok=True)
        sync_folder(me.run)
        writing_rank.vouch(index, me.rank, part.rank_file)
        self._unsettled = index if self._first else None
        return part

    def _written(self, share: Path, snapshot: Snapshot) -> Written:
        """Each is whole: what is linked would have to stay as long as its newest link, on every node with a copy."""

        def write() -> Written:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return replace(writing_rank.write(share, self._me, snapshot, []), kept=None)

        if isinstance(snapshot.staged, PieceStage):  # its copies are the training thread's own, and it waits
            return write()
        return self._in_time(write, time_for(sum(chunk.bytes for chunk in snapshot.share.chunks)))

    def _on_node(self, act: Callable[[], T]) -> T:
        return self._in_time(act, time_for(0))

    def _copied(self, snapshot: Snapshot, part: Part, name: str) -> Part:
        """With the rank file, which says who has a copy. A copy that may be there after all is another rank file's, so
        nobody will take it."""
        if self._partner is not None:
            said = {"node": self._node, "copy": self._partner.node}
            rank_file = writing_rank.describe(self._me, snapshot, part.written, said)
            try:
                self._partner.put(name, rank_file)
                return replace(part, rank_file=rank_file)
            except CopyFailed as error:
                self._told(error)
        said_alone = {"node": self._node, "copy": None}
        return replace(part, rank_file=writing_rank.describe(self._me, snapshot, part.written, said_alone))

    def remove(self, step: int) -> None:
        """What a failed save left on this node, unless the index vouches for it."""
        index = self.place(step)
        share, rank_file = self._folder / index.name, rank_file_name(self._me.rank)

        def remove() -> None:
            (share / rank_file).unlink(missing_ok=True)
            writing_rank.remove(share, self._me.rank)

        if not (index / rank_file).exists():
            self._on_node(remove)

    @property
    def unsettled(self) -> bool:
        """Whether this rank is to tidy up, and it is not known yet what becomes of this node's last shares."""
        return self._unsettled is not None

    def look(self) -> None:
        """Once the last step is committed, or given up, what it replaces goes. Raises OSError, NotNewest."""
        last = self._unsettled
        if last is not None and ((last / MANIFEST).exists() or not last.exists()):
            self._unsettled = None
            self.tidy()

    def clear(self, step: int) -> None:
        """All of this run's shares up to that step. Raises OSError, NotNewest."""
        if self._first:
            retention.clear(self._folder, self._me.run, self._me.generation, step, self._on_node)

    def tidy(self) -> None:
        """Raises OSError, NotNewest."""
        if self._first:
            retention.follow_index(self._folder, self._me.run, self._me.generation, self._on_node)
