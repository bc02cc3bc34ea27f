"""Rank 0's part after a save: the commit, the retention, and the word that a checkpoint was read back. In background.

No collective: each look asks whether every rank file is there and renames the manifest into place; if rank 0 dies
first, its successor does. Nothing here raises into training, but for `superseded`, which ends it at its next step.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.protocol import committing, generations
from worker_hooks.protocol.durable import encode_json, replace_file
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, VERIFIED, RankFile
from worker_hooks.protocol.tiers import LOCAL, SHARED, Tier, tier_of
from worker_hooks.training.identity import Identity
from worker_hooks.training.saving import read_back, retention
from worker_hooks.training.state import fingerprint
from worker_hooks.training.telemetry import Telemetry

COMMIT_DEADLINE_S = 120.0
POLL_S = 0.01


@dataclass(frozen=True)
class Pending:
    """A save of this rank that is written. `more`: what else its record says."""

    folder: Path
    step: int
    started: float
    blocked_s: float | None
    more: dict[str, Any]


class Committer:
    """`keep`: how many stay, by tier. `failure(step, tier)`: what some rank said went wrong with that save."""

    def __init__(
        self,
        identity: Identity,
        telemetry: Telemetry,
        *,
        keep: Mapping[Tier, int],
        failure: Callable[[int, Tier], str | None],
    ) -> None:
        self.superseded: NotNewest | None = None
        self.failed: dict[tuple[int, Tier], str] = {}
        self.start: str | None = None
        self._identity = identity
        self._telemetry = telemetry
        self._keep = keep
        self._failure = failure
        self._pending: list[Pending] = []
        self._unverified: list[Path] = []

    @property
    def waiting(self) -> bool:
        return bool(self._pending)

    def add(self, pending: Pending) -> None:
        self._pending.append(pending)

    def look(self) -> None:
        """Commit what has become complete, give up what never will, note what was read back."""
        self._pending = [pending for pending in self._pending if not self._settled(pending)]
        self._unverified = [folder for folder in self._unverified if not self._verified(folder)]

    # --- the commit -----------------------------------------------------------------------------------------------

    def _settled(self, pending: Pending) -> bool:
        try:
            return self._commit(pending) or self._hopeless(pending)
        except NotNewest as error:
            self.superseded = error
            return True
        except OSError as error:  # storage that answers again later is asked again
            return self._over(pending, f"committing {pending.folder.name}: {error}", whole=True)
        except ValueError as error:
            return self._over(pending, f"committing {pending.folder.name}: {error}")

    def _commit(self, pending: Pending) -> bool:
        folder, me = pending.folder, self._identity
        manifest = committing.commit_folder(folder, me.generation, now=time.time())
        if manifest is None:
            return False
        ranks = [generations.read_rank_file(folder, rank) for rank in range(me.world_size)]
        diverged = fingerprint.diverged({rank.rank: rank.fingerprint for rank in ranks})
        if diverged:
            self._tell_diverged(folder, diverged)
        self._record(
            pending.step,
            folder,
            "committed",
            bytes=sum(entry.bytes for rank in ranks for entry in rank.files),
            blocked_s=pending.blocked_s,
            durable_s=time.monotonic() - pending.started,
            diverged=diverged,
            **pending.more,
            **_of_tier(folder, ranks),
        )
        if tier_of(folder) == SHARED:  # what lies on the nodes is compared when it is read for a resume
            self._unverified.append(folder)
        self._tidy(folder)
        return True

    def _tell_diverged(self, folder: Path, groups: list[list[int]]) -> None:
        """It stays committed: training goes on from this state in any case, and an older one may be no better."""
        said = " and ".join(f"ranks {ranks}" for ranks in groups)
        raw = f"{folder.name}: {said} hold other values of what one of them stores for all"
        self._telemetry.record("sign", code="replicas_diverged", raw=raw, layer="process", source="training")

    def _hopeless(self, pending: Pending) -> bool:
        """Rank files may be coming in while this looks, so only what they say is final; all else waits."""
        missing = generations.missing_ranks(pending.folder, self._identity.world_size)
        if not missing:
            ranks = [generations.read_rank_file(pending.folder, rank) for rank in range(self._identity.world_size)]
            bad = [rank.rank for rank in ranks if rank.fingerprint.get("finite") is False]
            if bad:
                self.set_aside(pending.folder, f"parameters are not finite on ranks {bad}")
                return True
        failure = self._failure(pending.step, tier_of(pending.folder))
        if failure is not None:
            return self._give_up(pending, failure)
        said = f"nothing from ranks {missing}" if missing else "files are missing or short"
        return self._over(pending, f"{pending.folder.name}: {said}")

    def _over(self, pending: Pending, why: str, *, whole: bool = False) -> bool:
        if time.monotonic() - pending.started <= COMMIT_DEADLINE_S:
            return False
        return self._give_up(pending, f"{why} after {COMMIT_DEADLINE_S:.0f} s", whole=whole)

    def _give_up(self, pending: Pending, why: str, *, whole: bool = False) -> bool:
        """This save counts as failed; its folder makes room for the next one. Where it may be `whole`, and only the
        commit could not be written, it stays: the next attempt commits it."""
        self.failed[pending.step, tier_of(pending.folder)] = why
        self._record(pending.step, pending.folder, "failed", blocked_s=pending.blocked_s, reason=why)
        if whole:
            return True
        with self._told():
            retention.discard(pending.folder, self._identity.generation)
        return True

    def _tidy(self, folder: Path) -> None:
        """After a commit: the hint and the retention. Neither is worth a training run, and a hint that cannot be
        written is no reason to keep what fills the disk."""
        me, tier = self._identity, tier_of(folder)
        start = self.start if tier == SHARED else None
        if tier == SHARED:
            with self._told():
                replace_file(me.run / "latest", folder.name.encode() + b"\n")
        with self._told():
            retention.prune(me.run, me.generation, keep=self._keep[tier], protected={start, folder.name}, tier=tier)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except NotNewest as error:
            self.superseded = error
        except OSError as error:
            self._sign(error)

    # --- read back --------------------------------------------------------------------------------------------------

    def _verified(self, folder: Path) -> bool:
        """True when there is nothing left to wait for. A folder that was pruned or quarantined meanwhile is done."""
        try:
            if not (folder / MANIFEST).exists() or (folder / QUARANTINE).exists():
                return True
            reports = [_report(folder, rank) for rank in range(self._identity.world_size)]
            found = [report for report in reports if report is not None]
            problems = [report["problem"] for report in found if report["problem"]]
            if problems:
                generations.check_token(self._identity.run, self._identity.generation)
                self.set_aside(folder, "; ".join(problems))
                return True
            if len(found) < self._identity.world_size:
                return False
            note = read_back.verified_note(found, folder, now=time.time())
            replace_file(folder / VERIFIED, encode_json(note))
            self._record(int(folder.name[5:].partition(".")[0]), folder, "verified", bytes=note["bytes"])
        except NotNewest as error:
            self.superseded = error
        except (OSError, ValueError, KeyError) as error:
            self._sign(error)
        return True

    def set_aside(self, folder: Path, reason: str) -> None:
        """Quarantine a folder and say so."""
        generations.quarantine(folder, reason=reason, generation=self._identity.generation, now=time.time())
        self._record(int(folder.name[5:].partition(".")[0]), folder, "quarantined", reason=reason)

    def _record(self, step: int, folder: Path, state: str, **more: Any) -> None:
        plain = {"bytes": None, "blocked_s": None, "durable_s": None, "reason": None, "tier": tier_of(folder)}
        self._telemetry.record("checkpoint", step=step, folder=folder.name, state=state, **{**plain, **more})
        if more.get("reason"):  # in rank 0's log too: where nobody has a page, nothing else tells of it in time
            print(f"relume: {folder.name} {state}: {more['reason']}", file=sys.stderr, flush=True)

    def _sign(self, error: Exception) -> None:
        self._telemetry.record("sign", code="checkpoint_tidy", raw=str(error), layer="storage", source="training")


def _of_tier(folder: Path, ranks: Sequence[RankFile]) -> dict[str, int]:
    """What only one of the tiers has. A `kept-` file with another name was linked, not written: nobody links to it
    before it is committed."""
    if tier_of(folder) == LOCAL:
        return {"bytes_linked": 0, "copies": sum(bool(rank.saving.get("copy")) for rank in ranks)}
    kept = [entry for rank in ranks for entry in rank.files if "/kept-" in entry.name]
    return {"bytes_linked": sum(entry.bytes for entry in kept if (folder / entry.name).stat().st_nlink > 1)}


def _report(folder: Path, rank: int) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads((folder / read_back.report_name(rank)).read_bytes())
    except FileNotFoundError:
        return None
    return report if report.get("manifest") == read_back.manifest_digest(folder) else None
