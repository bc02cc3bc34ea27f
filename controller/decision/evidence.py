"""What diagnosis weighs: dated signs from every layer, and what is known of the job around them.

Signs come from `worker_hooks/signs` and the controller's own rows; here they are plain values, so that a live subject,
a stored incident and a bundle on disk are judged by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # facts carry evidence
    from controller.decision.facts import NodeFact, SlurmJobFact

Scalar = str | int | float | bool

# Whose word a piece of evidence is. Only the first three may hold a node unless the policy trusts the job's own word.
SENSOR = "sensor"  # the root daemon of the node
SLURM = "slurm"
CONTROLLER = "controller"  # the controller's own probes, and its own memory of earlier incidents
JOB = "job"  # the job's own processes: its agents, its logs
INDEPENDENT = frozenset({SENSOR, SLURM, CONTROLLER})


@dataclass(frozen=True)
class Evidence:
    """One sign, dated on the controller's clock (`at` None: unknown). `id` is unique in its set and says nothing by
    itself: the same sign that comes twice has the same `key`. `job`: the run id whose word it is, for JOB.
    `received_at`: when the controller got it, None in a bundle; it orders nothing."""

    id: str
    code: str
    layer: str
    source: str
    origin: str
    raw: str
    at: float | None = None
    node: str | None = None
    rank: int | None = None
    attrs: Mapping[str, Scalar] = field(default_factory=dict)
    count: int = 1
    last_at: float | None = None
    job: str = ""
    received_at: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two arrivals the same sign."""
        return self.code, self.origin, self.source, self.node, self.rank, self.at, self.raw

    @property
    def family(self) -> str:
        return self.code.split(".", 1)[0]


@dataclass(frozen=True)
class PastAttempt:
    """An earlier attempt, or an earlier failure of the same kind. `verdict`: how it was judged, "" unknown."""

    last_step: int | None = None
    start_step: int | None = None
    verdict: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Case:
    """Everything that one diagnosis may rest on. None and empty mean unknown.

    `rank_nodes`: rank to node. `addresses`: address or host name to node. `nodes`: of the job. `unreadable`: what could
    not be read (`kernel`, `job_log`, ...): unknown, not clean. `read_clean`: nodes whose kernel log was read. `gpus`:
    node to the UUIDs that the job holds there (empty: all of the node's are its own or unknown). `finished`: the run
    said that it is complete. `last_step` 0: no step was ever made. `still_training`: it goes on after the signs.
    `worked_before`: these nodes have run this job. `healthy_nodes`: equals that did the same thing without fault.
    `cancelled_by_user`: somebody ended it. `attempts`: earlier ones, oldest first, without the present one.
    `same_before`: how many earlier attempts in a row ended like this one without progress. `trusted`: whether the word
    of the job alone may hold a node. `memory_s`: for so long before `now` what was remembered of nodes counts, None for
    ever. `facts`: what else a bundle says. `now`: None for a bundle."""

    evidence: tuple[Evidence, ...] = ()
    run_id: str = ""
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    node_facts: Mapping[str, NodeFact] = field(default_factory=dict)
    slurm: SlurmJobFact | None = None
    gpus: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    read_clean: frozenset[str] = frozenset()
    finished: bool = False
    last_step: int | None = None
    still_training: bool = False
    worked_before: bool = False
    healthy_nodes: frozenset[str] = frozenset()
    cancelled_by_user: bool = False
    attempts: tuple[PastAttempt, ...] = ()
    same_before: int = 0
    trusted: bool = False
    memory_s: float | None = None
    now: float | None = None
    facts: Mapping[str, Scalar] = field(default_factory=dict)
