"""What the core may know: aggregates only, never metric points or log text. Times are Unix seconds (UTC).

Every value here comes from a database row or the last good view of Slurm; `None` means unknown, and unknown is never
treated as a state. The values are plain, so a slice of facts can be stored with its decision and replayed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from controller.decision import silence
from controller.decision.attempt_facts import AttemptFact, EndedAttempt
from controller.decision.evidence import Evidence
from controller.decision.launch_facts import LaunchFact, SchedulerFact, StartFact

SILENT_OUTCOMES = frozenset({"timeout", "unreachable"})
LIVING_OUTCOMES = frozenset({"open", "refused"})
# Whose wish a hold is, by the kinds of `slurm.views.HoldKind`. Slurm keeps two kinds (tried with every rank): the
# owner's, which an operator may also set (`uhold`), and one of operators, administrators, SlurmUser and root alike,
# which the owner cannot lift.
HOLDERS = {
    "user": "its owner (JobHeldUser)",
    "admin": "an operator, an administrator or root (JobHeldAdmin)",
    "reservation-deleted": "Slurm, since its reservation was deleted",
}


@dataclass(frozen=True)
class ProbeFact:
    """One TCP probe of `node`. `vantage` is `controller` or the node whose agent probed. `at`: when the answer came."""

    vantage: str
    node: str
    outcome: str
    at: float

    @property
    def silent(self) -> bool:
        return self.outcome in SILENT_OUTCOMES


@dataclass(frozen=True)
class NodeFact:
    """A node as Slurm's last good view has it. `hold_state` is our own live hold, if any. A node that the view does not
    show (a hidden partition, PrivateData) has no fact at all: it is unknown, not gone. `answered_at`: when a hold of
    it, or an incident that suspects it, was last made, whatever became of them: signs received before are dealt with.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    jobs: tuple[str, ...] = ()
    hold_state: str | None = None
    boot_at: float | None = None
    reason_at: float | None = None
    answered_at: float | None = None

    @property
    def drained_by_somebody(self) -> bool:
        return bool(self.flags & {"DRAIN", "FAIL"}) and self.hold_state is None

    @property
    def down(self) -> bool:
        return self.base == "DOWN"

    @property
    def away(self) -> bool:
        """Its reboot, power saving or maintenance was begun on purpose: Slurm may call it DOWN until it is back."""
        return silence.away(self.flags)

    @property
    def responding(self) -> bool:
        return "NOT_RESPONDING" not in self.flags


@dataclass(frozen=True)
class SlurmJobFact:
    """The Slurm job behind the current attempt, from the last good view."""

    job_id: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    restarts: int = 0
    requeue: bool = True
    batch: bool = True
    nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    num_nodes: int = 1
    held_by: str | None = None
    exit_code: int | None = None
    exit_meaning: str | None = None
    exit_signal: int = 0
    reservation: str = ""
    start_at: float | None = None
    user: str = ""
    unsupported: tuple[str, ...] = ()  # why this job is only watched, one refusal each
    end_at: float | None = None
    submit_at: float | None = None
    batch_host: str = ""
    time_limit_s: float | None = None

    @property
    def completing(self) -> bool:
        return "COMPLETING" in self.flags

    @property
    def holder(self) -> str:
        """Who holds it, in words; "" for a job that nobody holds."""
        return "" if self.held_by is None else HOLDERS.get(self.held_by, f"Slurm ({self.reason or self.held_by})")

    @property
    def failed(self) -> bool:
        """Slurm has seen all of its processes end, badly: nobody's silence can explain anything any more."""
        return self.base in ("FAILED", "OUT_OF_MEMORY") and "COMPLETING" not in self.flags

    @property
    def died_by_signal(self) -> bool:
        """The batch script was killed, or ended with 128 + a signal as shells, srun and `relume run` do."""
        return self.exit_signal > 0 or (self.exit_code is not None and 128 < self.exit_code < 193)


@dataclass(frozen=True)
class ActionFact:
    kind: str
    target: str
    state: str
    reason: str = ""
    optional: bool = False


@dataclass(frozen=True)
class IncidentFact:
    """The live incident of this training job. `generation` and `restarts` are those of the attempt that it hit."""

    incident_id: int
    state: str
    cause: str
    generation: int | None
    restarts: int
    suspects: tuple[str, ...] = ()
    actions: tuple[ActionFact, ...] = ()
    ask: str = ""


@dataclass(frozen=True)
class PastFault:
    """The newest incident of this training job, live or not. `nodes`: of the attempt that it hit. `at`: its fault, or
    else when it was found. `until`: when it ended, None while it lives. `rests_on`: ids of its evidence from the run's
    own progress, where its cause is `not_finite`."""

    incident_id: int
    cause: str
    state: str
    nodes: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    at: float = 0.0
    detected_at: float = 0.0
    until: float | None = None
    rests_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spent:
    """Requeues already charged to this training job, and those at its present step without progress between; `of_kind`:
    of these how many for each verdict, with those of scripts that tell no step. What Slurm does by itself (preemption)
    is charged to nobody."""

    infrastructure: int = 0
    process: int = 0
    user: int = 0
    time_limit: int = 0
    same_step: int = 0
    of_kind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SubjectFacts:
    """Everything about one training job that a decision may rest on. `slurm` is None while Slurm does not show the job
    (hidden, or purged after its end): then nothing is concluded from its nodes; `unseen` says why. `launches`: failed
    starts of the recent past, of this job and of others. `starts_before`: starts of earlier Slurm jobs of this run.

    `evidence`: bounded: Slurm's states in words, and earlier hardware verdicts about these nodes; then, hardest and
    newest first, what the newest attempt's own processes said and what sensors said of its nodes since shortly before
    it began (and of the nodes of `last_fault` since then). `evidence_left_out`: how many there were besides.
    `rank_nodes`, `addresses`, `gpus`, `unreadable`, `read_clean`: as in `evidence.Case`. `attempts_before`: what came
    of earlier attempts, oldest first. `total_steps`: as the run said when it last began."""

    run_id: str
    state: str
    enrolled: bool
    attempt: AttemptFact | None = None
    slurm: SlurmJobFact | None = None
    view_at: float | None = None
    nodes: Mapping[str, NodeFact] = field(default_factory=dict)
    probes: tuple[ProbeFact, ...] = ()
    witnesses: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    incident: IncidentFact | None = None
    spent: Spent = Spent()
    unseen: str = ""
    last_start: StartFact | None = None
    launches: tuple[LaunchFact, ...] = ()
    scheduler: SchedulerFact = field(default_factory=SchedulerFact)
    starts_before: int = 0
    evidence: tuple[Evidence, ...] = ()
    evidence_left_out: int = 0
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    read_clean: frozenset[str] = frozenset()
    last_fault: PastFault | None = None
    attempts_before: tuple[EndedAttempt, ...] = ()
    total_steps: int | None = None

    def excuse(self, node: str) -> str | None:
        """Why nothing need be heard from this job on `node` now, as a sentence; None when it should speak."""
        slurm, fact = self.slurm, self.nodes.get(node)
        if slurm is not None and (why := silence.of_job(slurm.base, slurm.flags)) is not None:
            return f"job {slurm.job_id} {why}"
        if fact is None:
            return f"Slurm does not show {node}"
        others = slurm is None or not slurm.reservation
        why = silence.of_node(fact.flags, reserved_for_others=others)
        return None if why is None else f"{node} {why}"

    @property
    def live_attempt(self) -> AttemptFact | None:
        """The newest attempt, unless it has ended: what is said about an ended one is history."""
        return self.attempt if self.attempt is not None and self.attempt.state != "ended" else None

    @property
    def requeued_since(self) -> bool:
        """Slurm has restarted the job since its newest attempt: that one's processes are gone."""
        attempt, slurm = self.attempt, self.slurm
        if attempt is None or slurm is None or attempt.slurm_job_id != slurm.job_id:
            return False
        return slurm.restarts > attempt.restart_count

    @property
    def restarts_hit(self) -> int:
        """Slurm's restart count of the start that a fault found now has hit."""
        if self.live_attempt is not None:
            return self.live_attempt.restart_count
        return self.slurm.restarts if self.slurm is not None else 0

    def to_json(self) -> dict[str, Any]:
        """Builtins for the Decision row (sets become sorted lists)."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


@dataclass(frozen=True)
class ClusterFacts:
    """What admit() spends: counted over everybody, not only over us."""

    nodes_total: int
    nodes_out: frozenset[str]
    drains_last_hour: int
    requeues_last_minute: int
    view_at: float | None
    mode: str
    paused: bool = False
    breaker_open: bool = False
    rights: Mapping[str, Any] = field(default_factory=dict)  # what `decision.rights` reads
    job_user: str = ""  # who our writes to jobs are to Slurm; "" when not known

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
