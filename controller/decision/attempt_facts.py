"""What is known of one attempt: its agents, its ranks and how they get on. Plain values, as in `facts`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.decision.evidence import Evidence
from controller.decision.losses import LossState, NotFinite


@dataclass(frozen=True)
class AgentFact:
    """The last word of one agent of the current attempt. `received_at` is the controller's clock. `counts_from`:
    silence before it was expected, or nobody watched."""

    node: str
    received_at: float
    state: str
    leader: bool = False
    counts_from: float = 0.0

    @property
    def silent_since(self) -> float:
        return max(self.received_at, self.counts_from)


@dataclass(frozen=True)
class RankExit:
    """A rank that ended, as its agent reported. `at` is corrected to the controller's clock. `torn_down`: its agent
    ended it. `meaning`: what Relume's own exit codes say (`superseded`, `verification_failed`, `attempt_failed`)."""

    rank: int
    node: str
    exit_code: int | None
    signal: int | None
    at: float
    torn_down: bool = False
    meaning: str | None = None


@dataclass(frozen=True)
class RankProgress:
    """One rank by the last word of its agent, which was heard at `heard_at`. `phase` None: it never wrote its slot.
    `progressed_at`: its last step or change of phase; `beat_at`: when its own heartbeat thread last ran."""

    rank: int
    node: str
    state: str
    heard_at: float
    phase: str | None = None
    step: int | None = None
    progressed_at: float | None = None
    beat_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class LearnedPace:
    """How long one kind of stretch takes in this training job: all ranks of this attempt, else earlier attempts.
    `count`: how many were seen. `recent_s`: the latest ones of this attempt. Seconds."""

    count: int
    median_s: float
    longest_s: float
    recent_s: float | None = None


@dataclass(frozen=True)
class AttemptFact:
    """`ranks`: in order of their numbers. `learned`: by kind (`startup, loading, first_step, step, saving,
    evaluation`). `counts_from`: standing still before it was expected (the job was suspended). `loss`: rank 0's,
    without the values; `not_finite`: whose numbers were none first. `work`: what the ranks' own work took, as texts
    that `straggler_evidence` reads. `early`: why the script says that it ended before its last step.
    `saves_failed`: since the last committed one, why the newest, and since when."""

    generation: int
    state: str
    slurm_job_id: str
    restart_count: int
    nodes: tuple[str, ...] = ()
    agents: tuple[AgentFact, ...] = ()
    exits: tuple[RankExit, ...] = ()
    step: int | None = None
    start_step: int | None = None
    world_size: int | None = None
    first_step_seen: bool = False
    first_new_step_seen: bool = False
    finished: bool = False
    early: str = ""
    saves_failed: int = 0
    saves_failed_why: str = ""
    saves_failed_since: float | None = None
    checks_passed: int = 0
    checks_failed: tuple[str, ...] = ()
    replay_expected: bool = False
    replay_passed: int = 0
    launched_at: float | None = None
    counts_from: float = 0.0
    ranks: tuple[RankProgress, ...] = ()
    learned: Mapping[str, LearnedPace] = field(default_factory=dict)
    loss: LossState | None = None
    not_finite: tuple[NotFinite, ...] = ()
    work: tuple[str, ...] = ()


@dataclass(frozen=True)
class EndedAttempt:
    """An earlier attempt of the same training job: where it began, how far it got, what ended it. `verdict`: how the
    fault that ended it was judged, "" unknown; `evidence`: the proof lines of that, bounded, of the latest attempts."""

    generation: int
    start_step: int | None = None
    step: int | None = None
    outcome: str = ""
    nodes: tuple[str, ...] = ()
    verdict: str = ""
    evidence: tuple[Evidence, ...] = ()
