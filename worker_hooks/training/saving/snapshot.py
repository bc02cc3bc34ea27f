"""What a save takes with it when training goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker_hooks.protocol.tiers import Tier
from worker_hooks.training.files.digests import DEFAULT
from worker_hooks.training.saving.shares import Share
from worker_hooks.training.saving.staging import PieceStage, Stage
from worker_hooks.training.state import fingerprint, random_state
from worker_hooks.training.state.tracked import Parts, Tracked


@dataclass(frozen=True)
class Snapshot:
    """Everything a save needs after training has gone on: the staged share, and JSON values of its own."""

    step: int
    share: Share
    staged: Stage | PieceStage
    parameters: frozenset[str]
    random: dict[str, Any]
    data: dict[str, Any]
    fingerprint: dict[str, Any]
    state: dict[str, Any]
    objects: tuple[str, ...]
    optimizers: tuple[str, ...]
    losses: tuple[tuple[int, str], ...]
    run: dict[str, Any]
    skipped: Mapping[Tier, int]


def take(
    step: int,
    staged: Stage | PieceStage,
    tracked: Tracked,
    parts: Parts,
    *,
    data: dict[str, Any],
    losses: Sequence[tuple[int, str]],
    parameters: frozenset[str],
    world_size: int,
    run: Mapping[str, Any],
    skipped: Mapping[Tier, int],
) -> Snapshot:
    """At the boundary of step `step`. `run`: what else the manifest should say of the whole run."""
    return Snapshot(
        step=step,
        share=staged.share,
        staged=staged,
        parameters=parameters,
        random=random_state.capture(),
        data=data,
        fingerprint=fingerprint.glance(tracked, parts, step=step, world_size=world_size, algorithm=DEFAULT),
        state=parts.values,
        objects=tuple(tracked.others),
        optimizers=tuple(tracked.optimizers),
        losses=tuple(losses),
        run={
            "world_size": world_size,
            "digest_algorithm": DEFAULT,
            "threads": torch.get_num_threads(),
            "layout": fingerprint.layout(tracked, world_size),
            "versions": fingerprint.versions(),
            **run,
        },
        skipped=skipped,
    )
