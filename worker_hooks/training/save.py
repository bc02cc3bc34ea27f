"""Saving at a step boundary, and the commit (docs/formats.md section 6).

Each rank writes its share and its rank file durably, alone. No collective: rank 0 looks at each later boundary whether
every rank file is there and renames the manifest into place; if it dies first, its successor does.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import generations
from worker_hooks.protocol.durable import create_file, encode_json, replace_file, sync_folder
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.manifest import RankFile, encode_rank_file, folder_name, rank_file_name
from worker_hooks.training import fingerprint, random_state, retention
from worker_hooks.training.codec import Tensors
from worker_hooks.training.digests import DEFAULT
from worker_hooks.training.errors import CheckpointError, Superseded
from worker_hooks.training.share_writer import save_share
from worker_hooks.training.telemetry import Telemetry
from worker_hooks.training.tracked import Parts, Tracked

COMMIT_DEADLINE_S = 120.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Identity:
    """Which rank of which attempt of which training job writes."""

    run: Path
    generation: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class _Pending:
    folder: Path
    step: int
    started: float
    blocked_s: float


class Saver:
    """One rank's checkpoints of one attempt. The folder that the attempt started from is never pruned."""

    def __init__(self, identity: Identity, telemetry: Telemetry, *, keep: int, config_digest: str | None) -> None:
        self.identity = identity
        self.last_step = 0
        self._telemetry = telemetry
        self._keep = keep
        self._config_digest = config_digest
        self._verified: str | None = None
        self._pending: list[_Pending] = []

    def start_from(self, folder: str, step: int) -> None:
        """This attempt resumed from that verified folder."""
        self._verified, self.last_step = folder, step

    def save(self, step: int, tracked: Tracked, data: dict[str, Any], losses: list[tuple[int, str]]) -> None:
        """Write this rank's part of step `step`. Raises Superseded, CheckpointError."""
        started = time.monotonic()
        self._check_token()
        try:
            folder = self._write(step, tracked, data, losses)
        except OSError as error:
            raise CheckpointError(f"saving step {step}: {error}") from error
        self.last_step = step
        blocked = time.monotonic() - started
        if self.identity.rank == 0:
            self._pending.append(_Pending(folder, step, started, blocked))
            self.settle()

    def settle(self, *, wait: bool = False) -> None:
        """Rank 0: commit what has become complete. With `wait`, until nothing is left or the deadline has passed."""
        while self._pending:
            self._pending = [pending for pending in self._pending if not self._commit(pending)]
            if not wait:
                return
            if self._pending:
                time.sleep(_POLL_S)

    # --- this rank's part -----------------------------------------------------------------------------------------

    def _write(self, step: int, tracked: Tracked, data: dict[str, Any], losses: list[tuple[int, str]]) -> Path:
        me = self.identity
        layout = fingerprint.layout(tracked, me.world_size)
        parts = tracked.collect(me.world_size)
        taken = fingerprint.take(tracked, parts, step=step, world_size=me.world_size, algorithm=DEFAULT)
        folder = me.run / folder_name(step, me.generation)
        folder.mkdir(parents=True, exist_ok=True)
        files = save_share(folder, me.rank, my_share(parts, me.rank, me.world_size), DEFAULT)
        state = random_state.capture()
        rank_file = RankFile(
            rank=me.rank,
            generation=me.generation,
            step=step,
            files=tuple(files),
            random={**random_state.digests(state), "state": state},
            data=data,
            fingerprint=taken,
            state=parts.values,
            losses=tuple(losses),
            run={
                "world_size": me.world_size,
                "digest_algorithm": DEFAULT,
                "threads": torch.get_num_threads(),
                "layout": layout,
                "versions": fingerprint.versions(),
                "config_digest": self._config_digest,
            },
        )
        sync_folder(me.run)
        if not create_file(folder / rank_file_name(me.rank), encode_json(encode_rank_file(rank_file))):
            raise CheckpointError(f"{folder.name}: rank {me.rank} was saved there before")
        return folder

    # --- rank 0's commit ------------------------------------------------------------------------------------------

    def _commit(self, pending: _Pending) -> bool:
        """True when there is nothing left to do for this folder."""
        folder, me = pending.folder, self.identity
        try:
            manifest = generations.commit_folder(folder, me.generation, now=time.time())
        except NotNewest as error:
            raise _superseded(error) from None
        except OSError as error:
            raise CheckpointError(f"committing {folder.name}: {error}") from error
        if manifest is None:
            return self._incomplete(pending)
        size = sum(
            entry.bytes for rank in range(me.world_size) for entry in generations.read_rank_file(folder, rank).files
        )
        self._telemetry.record(
            "checkpoint",
            step=pending.step,
            folder=folder.name,
            state="committed",
            bytes=size,
            blocked_s=pending.blocked_s,
            durable_s=time.monotonic() - pending.started,
            reason=None,
        )
        self._tidy(folder)
        return True

    def _incomplete(self, pending: _Pending) -> bool:
        """Rank files may be coming in while this looks, so only what they say is final; all else waits."""
        missing = generations.missing_ranks(pending.folder, self.identity.world_size)
        if not missing:
            ranks = [generations.read_rank_file(pending.folder, rank) for rank in range(self.identity.world_size)]
            bad = [rank.rank for rank in ranks if rank.fingerprint.get("finite") is False]
            if bad:
                self.set_aside(pending.folder, f"parameters are not finite on ranks {bad}")
                return True
        if time.monotonic() - pending.started > COMMIT_DEADLINE_S:
            said = f"nothing from ranks {missing}" if missing else "files are missing or short"
            raise CheckpointError(f"{pending.folder.name}: {said} after {COMMIT_DEADLINE_S:.0f} s")
        return False

    def set_aside(self, folder: Path, reason: str) -> None:
        """Quarantine a folder and say so."""
        generations.quarantine(folder, reason=reason, generation=self.identity.generation, now=time.time())
        step = int(folder.name[5:].partition(".")[0])
        self._telemetry.record(
            "checkpoint",
            step=step,
            folder=folder.name,
            state="quarantined",
            bytes=None,
            blocked_s=None,
            durable_s=None,
            reason=reason,
        )

    def _tidy(self, folder: Path) -> None:
        """After a commit: the hint and the retention. Neither is worth a training run."""
        me = self.identity
        try:
            replace_file(me.run / "latest", folder.name.encode() + b"\n")
            retention.prune(me.run, me.generation, keep=self._keep, protected={self._verified, folder.name})
        except NotNewest as error:
            raise _superseded(error) from None
        except OSError as error:
            self._telemetry.record("sign", code="checkpoint_tidy", raw=str(error), layer="storage", source="training")

    def _check_token(self) -> None:
        try:
            generations.check_token(self.identity.run, self.identity.generation)
        except NotNewest as error:
            raise _superseded(error) from None
        except OSError as error:
            raise CheckpointError(f"reading the generation: {error}") from error


def my_share(parts: Parts, rank: int, world_size: int) -> Tensors:
    """What this rank writes: shared tensors dealt out by size, its shards, and its own under a key of its own.

    The same rule on the same shapes gives every rank the same deal; nobody has to ask. Buffers that DDP broadcasts
    differ by rank until the next forward: rank 0's are the ones that count.
    """
    loads = [0] * world_size
    share: Tensors = {}
    sharded = {key: value for key, value in parts.shared.items() if hasattr(value, "to_local")}
    plain = {key: value for key, value in parts.shared.items() if key not in sharded}
    for key in sorted(plain, key=lambda key: (-plain[key].numel() * plain[key].element_size(), key)):
        taker = 0 if key in parts.from_rank_zero else loads.index(min(loads))
        loads[taker] += plain[key].numel() * plain[key].element_size()
        if taker == rank:
            share[key] = plain[key]
    return share | sharded | {own_key(rank, key): value for key, value in parts.own.items()}


def own_key(rank: int, key: str) -> str:
    return f"rank-{rank:05d}:{key}"


def _superseded(error: NotNewest) -> Superseded:
    return Superseded(f"relume: {error}; this attempt ends and writes nothing more")
