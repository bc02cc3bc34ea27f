"""Saving at a step boundary (docs/formats.md section 6): training pays for one copy of this rank's share.

The training thread decides, deals, stages and goes on; the rank's background thread writes the share and the rank file
durably, and in rank 0 commits. A save that fails is a failed save: it is told, its folder is removed, training goes on
and the next one is tried. Only what a run must not survive reaches it: `Superseded`, at its next step.
"""

import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import generations
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, folder_name
from worker_hooks.training.errors import CheckpointError, Superseded
from worker_hooks.training.files.digests import DEFAULT
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving import read_back, writing_rank
from worker_hooks.training.saving.background import Background, wait_until
from worker_hooks.training.saving.commit import COMMIT_DEADLINE_S, POLL_S, Committer, Pending
from worker_hooks.training.saving.read_back import ReadBack
from worker_hooks.training.saving.shares import Dealer, Share
from worker_hooks.training.saving.stages import Stages
from worker_hooks.training.saving.staging import Stage
from worker_hooks.training.saving.turns import SharedTurns, Turns
from worker_hooks.training.saving.writing_rank import Snapshot
from worker_hooks.training.state import fingerprint, random_state
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.telemetry import Telemetry

ABANDON_PATIENCE_S = 1.5
_LOOK_S = 0.25
_FOLDERS_TO_READ = 2


class Saver:
    """One rank's checkpoints of one attempt. The folder that the attempt started from is never pruned.

    `host_memory`: the most bytes that may be staged at a time; a larger share is written in pieces while training
    waits. `asynchronous=False`: training waits until its rank's part is durable.
    """

    def __init__(
        self,
        identity: Identity,
        telemetry: Telemetry,
        *,
        keep: int,
        config_digest: str | None,
        host_memory: int | None = None,
        asynchronous: bool = True,
        board: SharedTurns | None = None,
    ) -> None:
        self.identity = identity
        self.last_step = 0
        self.waived: tuple[str, ...] = ()
        self._telemetry = telemetry
        self._config_digest = config_digest
        self._asynchronous = asynchronous
        self._background = Background(self._idle, self._sign)
        self._saving = False
        self._memory = threading.Event()
        self._memory.set()
        self._turns = Turns(identity.world_size, board, lambda: not self._saving)
        self._committer = Committer(identity, telemetry, keep=keep, failure=self._turns.failure)
        self._dealer = Dealer(identity.rank, identity.world_size)
        self._stages = Stages(host_memory)
        self._checked: tuple[Any, frozenset[str]] = (None, frozenset())
        self._superseded: NotNewest | None = None
        self._skipped = 0
        self._to_read: deque[Path] = deque(maxlen=_FOLDERS_TO_READ)
        self._reading: ReadBack | None = None

    # --- the training thread ----------------------------------------------------------------------------------------

    def start_from(self, folder: str, step: int) -> None:
        """This attempt resumed from that verified folder."""
        self._committer.start, self.last_step = folder, step

    def set_aside(self, folder: Path, reason: str) -> None:
        self._committer.set_aside(folder, reason)

    def check(self) -> None:
        """Raises Superseded if the background found another attempt. Costs two comparisons."""
        found = self._superseded or self._committer.superseded
        if found is not None:
            raise superseded(found)

    def prepare(self, tracked: Tracked) -> None:
        """Once the whole state is there: memory for the first save is found and touched while training goes on."""
        share, tensors = self._dealer.deal(tracked.collect(self.identity.world_size))
        pinned = any(tensor.is_cuda for tensor in share.tensors(tensors))
        self._memory.clear()

        def allocate() -> None:
            try:
                self._stages.allocate(share, pinned=pinned)
            finally:
                self._memory.set()

        self._background.put(allocate)

    def save(self, step: int, tracked: Tracked, data: dict[str, Any], losses: list[tuple[int, str]]) -> bool:
        """Stage this rank's part of step `step`; False if it was left out because a save is in flight on some rank.

        Raises CheckpointError for a state that cannot be stored, and Superseded.
        """
        started = time.monotonic()
        self.check()
        if not self._turns.begin(step):
            self._skipped += 1
            return False
        snapshot, tensors = self._stage(step, tracked, data, losses)
        self.last_step = step
        self._saving = True
        if isinstance(snapshot.staged, Stage):
            self._background.put(lambda: self._write(snapshot, started))  # follows the copy from its first bytes on
            snapshot.staged.fill(tensors)
            if not self._asynchronous:
                self._background.wait()
        else:
            self._write(snapshot, started)
            self._background.wake()
        self.check()
        return True

    def _stage(
        self, step: int, tracked: Tracked, data: dict[str, Any], losses: list[tuple[int, str]]
    ) -> tuple[Snapshot, list[torch.Tensor]]:
        """What the writer needs, and the tensors that are still to be copied."""
        me = self.identity
        layout = fingerprint.layout(tracked, me.world_size)
        parts = tracked.collect(me.world_size)
        share, tensors = self._dealer.deal(parts)
        self._memory.wait()  # at the first save, if it is being prepared
        sources = share.tensors(tensors)
        staged = self._stages.stage(share, sources)
        state, self._skipped, skipped = random_state.capture(), 0, self._skipped
        snapshot = Snapshot(
            step=step,
            share=share,
            staged=staged,
            parameters=self._parameters(share, tracked),
            random=state,
            data=data,
            fingerprint=fingerprint.glance(tracked, parts, step=step, world_size=me.world_size, algorithm=DEFAULT),
            state=parts.values,
            objects=tuple(tracked.others),
            optimizers=tuple(tracked.optimizers),
            losses=tuple(losses),
            run={
                "world_size": me.world_size,
                "digest_algorithm": DEFAULT,
                "threads": torch.get_num_threads(),
                "layout": layout,
                "versions": fingerprint.versions(),
                "config_digest": self._config_digest,
                "waived": list(self.waived),
            },
            skipped=skipped,
        )
        return snapshot, sources

    def _parameters(self, share: Share, tracked: Tracked) -> frozenset[str]:
        """Keys whose numbers must be finite."""
        if self._checked[0] is not share:
            self._checked = (share, frozenset(tracked.parameters()))
        return self._checked[1]

    def settle(self) -> None:
        """Wait until no rank has a save in flight, for one that must not be left out."""
        self._background.wait()
        try:
            wait_until(self._turns.over, COMMIT_DEADLINE_S, POLL_S)
        except (OSError, RuntimeError):  # the store is gone; the next save will find out
            pass

    def finish(self) -> None:
        """Wait for the save in flight, on all ranks, and in rank 0 for its commit. Raises CheckpointError if the last
        save came to nothing, Superseded."""
        self._background.wait()
        if not wait_until(self._over, COMMIT_DEADLINE_S + 10.0, POLL_S):
            raise CheckpointError(f"step {self.last_step}: not committed after {COMMIT_DEADLINE_S:.0f} s")
        self.check()
        failure = self._committer.failed.get(self.last_step) or self._turns.failure(self.last_step)
        if failure is not None:
            raise CheckpointError(failure)

    def _over(self) -> bool:
        if self._committer.waiting:
            self._background.wake()
        try:
            return self._turns.over() and not self._committer.waiting
        except (OSError, RuntimeError):
            return not self._committer.waiting

    def close(self, patience_s: float = ABANDON_PATIENCE_S) -> None:
        """After an error of the user's code: what is being written gets a moment to become complete."""
        if self._background.wait(patience_s):
            wait_until(lambda: not self._committer.waiting, patience_s, POLL_S)
        self._background.close(patience_s)
        self._stages.close()

    # --- the background thread ----------------------------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, started: float) -> None:
        me = self.identity
        folder = me.run / folder_name(snapshot.step, me.generation)
        failure: str | None = None
        try:
            self._committer.look()  # the save before this one is complete by now
            generations.check_token(me.run, me.generation)
            written = writing_rank.write(folder, me, snapshot, self._stages.kept)
            self._stages.learn(snapshot.share, written)
        except NotNewest as error:
            failure, self._superseded = str(error), error
        except Exception as error:
            failure = f"saving step {snapshot.step}: {error}"
            self._failed(folder, error)
        with suppress(OSError):
            snapshot.staged.complete()  # a write may fail before the copy is over
        self._saving = False
        self._tell_done(snapshot.step, failure)
        if me.rank == 0 and self._superseded is None:
            until = snapshot.staged.filled_at if isinstance(snapshot.staged, Stage) else time.monotonic()
            more = {"skipped": snapshot.skipped, "in_pieces": not isinstance(snapshot.staged, Stage)}
            self._committer.add(Pending(folder, snapshot.step, started, until - started, more))
        if failure is None:
            self._to_read.append(folder)

    def _tell_done(self, step: int, failure: str | None) -> None:
        try:
            self._turns.done(step, failure)
        except (OSError, RuntimeError) as error:
            self._sign(error)

    def _failed(self, folder: Path, error: Exception) -> None:
        """The half-written part makes room at once: the next save may need it."""
        self._sign(error, code="checkpoint_write")
        writing_rank.remove(folder, self.identity.rank)

    def _idle(self) -> float:
        """Commits, or a little reading back. How long until the next look."""
        if self._superseded is not None:
            return 60.0
        if self.identity.rank == 0:
            self._committer.look()
            if self._committer.waiting:
                return POLL_S
        return self._read_back()

    def _read_back(self) -> float:
        if self._reading is None:
            self._reading = self._next_to_read()
        if self._reading is None:
            return _LOOK_S if self._to_read or self.identity.rank == 0 else 60.0
        rest = self._reading.step()
        if rest > 0.0:
            return rest
        read, self._reading = self._reading, None
        read_back.write_report(read, by=self.identity.rank, now=time.time())
        return POLL_S

    def _next_to_read(self) -> ReadBack | None:
        """The newest that is committed. An older one that was overtaken is not worth reading any more."""
        for folder in reversed(self._to_read):
            if (folder / MANIFEST).exists() and not (folder / QUARANTINE).exists():
                while self._to_read and self._to_read[0] != folder:
                    self._to_read.popleft()
                self._to_read.popleft()
                return ReadBack(folder, (self.identity.rank + 1) % self.identity.world_size)
        return None

    def _sign(self, error: Exception, code: str = "checkpoint_tidy") -> None:
        raw = f"{type(error).__name__}: {error}"[:2000]
        self._telemetry.record("sign", code=code, raw=raw, layer="storage", source="training", rank=self.identity.rank)


def superseded(error: NotNewest) -> Superseded:
    return Superseded(f"relume: {error}; this attempt ends and writes nothing more")
