"""What the new records of one message change, as plain values."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.ingest.signs import SignNote
from worker_hooks.protocol.tiers import SHARED


@dataclass(frozen=True)
class Points:
    seq: int
    rank: int
    name: str
    steps: list[int]
    times: list[Any]
    values: list[Any]


@dataclass(frozen=True)
class CheckpointNote:
    folder: str
    step: int
    state: str
    at: datetime
    reason: str = ""
    bytes: int | None = None
    blocked_s: float | None = None
    durable_s: float | None = None
    tier: str = SHARED
    copies: int | None = None


@dataclass(frozen=True)
class ProbeAnswer:
    check: int
    outcome: str


@dataclass
class Changes:
    """Everything that a message's new records change. `decisive`: the sweep should look now, not at its next tick.
    `losses`: rank 0's points; `not_finite`: (rank, metric, first step) of numbers that are none. `work`: by
    rank, the seconds of its own work by step; `roles`: by rank. `saving`: `ingest.saves`."""

    stamps: dict[str, datetime] = field(default_factory=dict)
    exits: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    log_tails: dict[str, str] = field(default_factory=dict)
    points: list[Points] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    not_finite: list[tuple[int, str, int]] = field(default_factory=list)
    work: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    roles: dict[int, str] = field(default_factory=dict)
    signs: list[SignNote] = field(default_factory=list)
    checkpoints: list[CheckpointNote] = field(default_factory=list)
    probes: list[ProbeAnswer] = field(default_factory=list)
    run_facts: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    saving: dict[str, Any] = field(default_factory=dict)
    start_step: int | None = None
    start_folder: str = ""
    early: str = ""
    world_size: int | None = None
    step: int | None = None
    step_at: datetime | None = None
    decisive: bool = False

    def reached(self, step: int, at: datetime) -> None:
        if self.step is None or step > self.step:
            self.step, self.step_at = step, at

    def count_unknown(self, what: str) -> None:
        self.unknown[what] = self.unknown.get(what, 0) + 1

    @property
    def touches_attempt(self) -> bool:
        """Anything besides the step, which has its own cheap conditional write."""
        told = self.stamps or self.exits or self.checks or self.log_tails or self.losses or self.not_finite
        return bool(told or self.saving or self.early or self.world_size or self.start_step is not None)

    @property
    def touches_facts(self) -> bool:
        return bool(self.run_facts or self.unknown or self.lost)
