"""The attempts and checkpoints of a training job as table rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from controller.models import Attempt, Checkpoint
from controller.queries.job import JobStory
from controller.slurm.hostlist import fold
from dashboard import formats, words
from dashboard.presenters import attempt_saves
from dashboard.presenters.same_run import SameRun, of_attempt
from dashboard.words import Word


@dataclass(frozen=True)
class AttemptRow:
    attempt: Attempt
    word: Word
    started: datetime
    ran: str
    steps: str
    kept: str
    repeated: str
    nodes: str
    because: str
    incident: int | None
    reached_slurm: bool
    same_run: SameRun | None
    saves: list[str]
    saves_word: Word | None


@dataclass(frozen=True)
class CheckpointRow:
    checkpoint: Checkpoint
    word: Word
    verified: str
    flags: list[tuple[str, str]]
    newest: bool


def attempt_row(story: JobStory, k: int) -> AttemptRow:
    attempt = story.attempts[k]
    following = story.attempts[k + 1 :]
    cuts = [a.start_step for a in following if a.start_step is not None]
    started = attempt.launched_at or attempt.created_at
    ended = attempt.ended_at or (following[0].created_at if following else story.at)
    begin = attempt.start_step or 0
    reached = attempt.step
    kept = None if reached is None else max(min([reached, *cuts]) - begin, 0)
    repeated = None if reached is None or not cuts else max(reached - max(min(cuts), begin), 0)
    incident = story.incident_of(attempt)
    because = incident.summary if incident is not None else attempt.outcome_reason
    return AttemptRow(
        attempt=attempt,
        word=words.of_attempt(attempt.state, attempt.outcome),
        started=started,
        ran=formats.duration((ended - started).total_seconds()),
        steps=formats.NONE if reached is None else f"{formats.whole(begin)} → {formats.whole(reached)}",
        kept=formats.whole(kept),
        repeated=formats.whole(repeated),
        nodes=_fold(attempt.nodes),
        because=because,
        incident=incident.pk if incident is not None else None,
        reached_slurm=bool(attempt.slurm_job_id),
        same_run=of_attempt(attempt),
        saves=attempt_saves.sentences(story, attempt),
        saves_word=attempt_saves.word(story, attempt),
    )


def _fold(names: list[Any]) -> str:
    """Host lists folded; a name that is not a host name (it came from outside) is shown as it came."""
    texts = [str(n) for n in names]
    try:
        return fold(texts)
    except ValueError:
        return ", ".join(texts)


def checkpoint_row(story: JobStory, checkpoint: Checkpoint) -> CheckpointRow:
    good = story.newest_good
    newest = good is not None and checkpoint.pk == good.pk
    flags = [("newest good", "")] if newest else []
    if checkpoint.on_nodes:
        flags.append((_on_nodes(checkpoint), ""))
    if checkpoint.state in ("quarantined", "failed"):
        flags.append((checkpoint.state, "bad"))
    began = [a for a in story.attempts if a.start_folder == checkpoint.folder and _speaks_of(story, checkpoint)]
    flags += [(f"attempt {a.generation} began here", "") for a in began]
    loaded = [a for a in began if a.loaded_at is not None]
    if checkpoint.state == "quarantined":
        return CheckpointRow(checkpoint, Word("", "bad", "bad"), checkpoint.reason or "does not verify", flags, newest)
    if checkpoint.state == "failed":
        return CheckpointRow(checkpoint, Word("", "bad", "bad"), checkpoint.reason or "not saved", flags, newest)
    if loaded:
        return CheckpointRow(checkpoint, Word("", "ok", "shield"), "Loaded and compared", flags, newest)
    if checkpoint.verified_at is not None:
        return CheckpointRow(checkpoint, Word("", "ok", "shield"), "Read back from storage", flags, newest)
    said = "Committed, compared when it is read" if checkpoint.on_nodes else "Committed, not read back"
    return CheckpointRow(checkpoint, Word("", "idle", "ok"), said, flags, newest)


def _on_nodes(checkpoint: Checkpoint) -> str:
    copies = checkpoint.copies
    return f"on the nodes, {copies} {'copy' if copies == 1 else 'copies'} on peers" if copies else "on the nodes"


def _speaks_of(story: JobStory, checkpoint: Checkpoint) -> bool:
    """An attempt names the folder it began from; where both tiers have one of that name, the shared row says it."""
    same = [other for other in story.checkpoints if other.folder == checkpoint.folder]
    return len(same) == 1 or not checkpoint.on_nodes


def checkpoint_note(story: JobStory) -> str:
    every, on_nodes = _every(story, on_nodes=False), _every(story, on_nodes=True)
    shown, total = sum(not c.on_nodes for c in story.checkpoints), story.checkpoints_total
    waived = story.job.facts.get("waived")
    parts = (
        every,
        f"on the nodes {on_nodes}" if on_nodes else "",
        f"{shown} of {formats.whole(total)}" if total > shown else "",
        f"incomplete, waived by the user: {waived}" if waived else "",
    )
    return ", ".join(part for part in parts if part)


def _every(story: JobStory, *, on_nodes: bool) -> str:
    steps = sorted({c.step for c in story.checkpoints if c.state == "committed" and c.on_nodes == on_nodes})
    gaps = sorted(b - a for a, b in pairwise(steps))
    return f"every {formats.whole(gaps[len(gaps) // 2])} steps" if gaps else ""
