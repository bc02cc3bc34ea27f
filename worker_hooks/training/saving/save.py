"""Saving at a step boundary (docs/formats.md section 6): training pays for one copy of this rank's share.

The training thread decides, deals, stages and goes on; the rank's background thread writes the share and the rank file
durably, and in rank 0 commits. A save that fails is a failed save: it is told, its folder is removed, training goes on
and the next one is tried. Only what a run must not survive reaches it: `Superseded`, at its next step.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import generations
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.tiers import SHARED, Tier, tier_of
from worker_hooks.training.errors import CheckpointError, Superseded
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving.background import Background, wait_until
from worker_hooks.training.saving.commit import COMMIT_DEADLINE_S, POLL_S, Committer, Pending
from worker_hooks.training.saving.read_back import ReadingBack
from worker_hooks.training.saving.shared import Part, SharedTier
from worker_hooks.training.saving.shares import Dealer, Share
from worker_hooks.training.saving.snapshot import Snapshot, take
from worker_hooks.training.saving.stages import Stages
from worker_hooks.training.saving.staging import Stage
from worker_hooks.training.saving.turns import SharedTurns, Turns
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.telemetry import Telemetry
from worker_hooks.training.tiers.local import LocalTier

ABANDON_PATIENCE_S = 1.5
_LOOK_S = 0.25
_AGAIN_S = 10.0


class Saver:
    """One rank's checkpoints of one attempt. The folder that the attempt started from is never pruned.

    `host_memory`: the most bytes that may be staged at a time; a larger share is written in pieces while training
    waits. `asynchronous=False`: training waits until its rank's part is durable. `local`: this node's own tier.
    """

    def __init__(
        self,
        identity: Identity,
        telemetry: Telemetry,
        *,
        keep: Mapping[Tier, int],
        config_digest: str | None,
        host_memory: int | None = None,
        asynchronous: bool = True,
        board: SharedTurns | None = None,
        node: str,
        local: LocalTier | None = None,
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
        self._shared, self._local = SharedTier(identity, node, self._stages), local
        self._checked: tuple[Any, frozenset[str]] = (None, frozenset())
        self._superseded: NotNewest | None = None
        self._skipped: Counter[Tier] = Counter()
        self._read_back = ReadingBack(identity)

    # --- the training thread ----------------------------------------------------------------------------------------

    def start_from(self, folder: Path, step: int) -> None:
        """This attempt resumed from that verified folder. What lay on the nodes alone is still to be saved for good."""
        if tier_of(folder) == SHARED:
            self._committer.start, self.last_step = folder.name, step

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

    def save(
        self,
        step: int,
        tracked: Tracked,
        data: dict[str, Any],
        losses: list[tuple[int, str]],
        tiers: Sequence[Tier] = (SHARED,),
    ) -> bool:
        """Stage this rank's part of step `step`; False if it was left out because a save is in flight on some rank.

        `tiers`: where it is due, LOCAL first, the same on every rank. Raises CheckpointError for a state that cannot be
        stored, and Superseded.
        """
        started = time.monotonic()
        self.check()
        if not self._turns.begin(step):
            self._skipped.update(tiers)
            return False
        skipped = {tier: self._skipped.pop(tier, 0) for tier in tiers}
        snapshot, tensors = self._stage(step, tracked, data, losses, skipped)
        if SHARED in tiers:
            self.last_step = step
        self._saving = True
        if isinstance(snapshot.staged, Stage):
            # It follows the copy: from its first bytes on where there is a core to spare.
            self._background.put(lambda: self._write(snapshot, started, tiers))
            snapshot.staged.fill(tensors)
            if not self._asynchronous:
                self._background.wait()
        else:
            self._write(snapshot, started, tiers)
            self._background.wake()
        self.check()
        return True

    def _stage(
        self,
        step: int,
        tracked: Tracked,
        data: dict[str, Any],
        losses: list[tuple[int, str]],
        skipped: Mapping[Tier, int],
    ) -> tuple[Snapshot, list[torch.Tensor]]:
        """What the writer needs, and the tensors that are still to be copied."""
        parts = tracked.collect(self.identity.world_size)
        share, tensors = self._dealer.deal(parts)
        self._memory.wait()  # at the first save, if it is being prepared
        sources = share.tensors(tensors)
        snapshot = take(
            step,
            self._stages.stage(share, sources),
            tracked,
            parts,
            data=data,
            losses=losses,
            parameters=self._parameters(share, tracked),
            world_size=self.identity.world_size,
            run={"config_digest": self._config_digest, "waived": list(self.waived)},
            skipped=skipped,
        )
        return snapshot, sources

    def _parameters(self, share: Share, tracked: Tracked) -> frozenset[str]:
        """Keys whose numbers must be finite."""
        if self._checked[0] is not share:
            self._checked = (share, frozenset(tracked.trained()))
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
        last = self.last_step
        failure = self._committer.failed.get((last, SHARED)) or self._turns.failure(last, SHARED)
        failure = failure or self._turns.own_failure(last, SHARED)
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

    def _write(self, snapshot: Snapshot, started: float, tiers: Sequence[Tier]) -> None:
        """One tier after the other, from the same buffer. What fails on one is no matter of the other."""
        part: Part | None = None
        failures: dict[Tier, str] = {}
        snapshot.staged.lead()
        for tier in tiers:
            try:
                part = self._write_to(tier, snapshot, part)
            except NotNewest as error:
                failures[tier], self._superseded = str(error), error
            except Exception as error:
                failures[tier] = f"saving step {snapshot.step}: {error}"
                self._failed(tier, snapshot.step, error)
            with suppress(OSError):
                snapshot.staged.complete()  # a write may fail before the copy is over
            self._hand_over(tier, snapshot, started, waited=tier == tiers[-1])
        if part is not None:
            self._stages.learn(snapshot.share, part.written)
        self._saving = False
        self._tell_done(snapshot.step, failures)
        if SHARED in tiers and SHARED not in failures:
            self._read_back.add(self._shared.place(snapshot.step))

    def _write_to(self, tier: Tier, snapshot: Snapshot, before: Part | None) -> Part:
        self._committer.look()  # the save before this one is complete by now
        generations.check_token(self.identity.run, self.identity.generation)
        return self._tier(tier).write(snapshot, before)

    def _tier(self, tier: Tier) -> SharedTier | LocalTier:
        if tier == SHARED:
            return self._shared
        assert self._local is not None, "a local save is due only where there is a local tier"
        return self._local

    def _hand_over(self, tier: Tier, snapshot: Snapshot, started: float, *, waited: bool) -> None:
        """`waited`: training's waiting is counted here; of a step on two tiers, once."""
        if self.identity.rank != 0 or self._superseded is not None:
            return
        staged, place = snapshot.staged, self._tier(tier).place(snapshot.step)
        until = staged.filled_at if isinstance(staged, Stage) else time.monotonic()
        more = {"skipped": snapshot.skipped[tier], "in_pieces": not isinstance(staged, Stage)}
        self._committer.add(Pending(place, snapshot.step, started, until - started if waited else None, more))

    def _tell_done(self, step: int, failures: Mapping[Tier, str]) -> None:
        try:
            self._turns.done(step, failures)
        except (OSError, RuntimeError) as error:
            self._sign(error)

    def _failed(self, tier: Tier, step: int, error: Exception) -> None:
        self._sign(error, code="checkpoint_write")
        with suppress(OSError):  # the disk that just failed
            self._tier(tier).remove(step)

    def _idle(self) -> float:
        """Commits, or a little reading back. How long until the next look."""
        if self._superseded is not None:
            return 60.0
        if self.identity.rank == 0:
            self._committer.look()
            if self._committer.waiting:
                return POLL_S
        return min(self._look_at_node(), self._read_back.step(_LOOK_S if self.identity.rank == 0 else 60.0))

    def _look_at_node(self) -> float:
        if self._local is None or not self._local.unsettled:
            return 60.0
        try:
            self._local.look()
        except NotNewest as error:
            self._superseded = error
        except OSError:  # what is wrong there is told by the next save
            return _AGAIN_S
        return _LOOK_S

    def _sign(self, error: Exception, code: str = "checkpoint_tidy") -> None:
        raw = f"{type(error).__name__}: {error}"[:2000]
        self._telemetry.record("sign", code=code, raw=raw, layer="storage", source="training", rank=self.identity.rank)


def superseded(error: NotNewest) -> Superseded:
    return Superseded(f"relume: {error}; this attempt ends and writes nothing more")
